------------------------------- MODULE Overlap -------------------------------
(***************************************************************************)
(* Overlap scheduling, stated once more and independently of the kernel:   *)
(* the CPU prepares one batch while the NPU runs another, and the tokens   *)
(* of the one are filled into the other before it is dispatched.           *)
(*                                                                         *)
(* One action is one event of Kernel.step.  Time is dropped; a client may  *)
(* come or leave at any moment, the host may be ready at any moment, each  *)
(* row may end.  Left out, because the bounds never reach them: budgets,   *)
(* chunked prompts, seats, prefix caching, priorities, refusals, failures. *)
(* A block holds one token, so a request holds as many blocks as positions *)
(* have been given to rows (sched).                                        *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS Requests,   \* how many may arrive, in the order of their numbers
          Blocks,     \* KV blocks of the pool
          Tokens,     \* output tokens of a request at most
          Lookahead,  \* batches that may stand outstanding behind the first
          Prompts     \* prompt lengths, a sequence that is repeated

VARIABLES req,      \* req[i]: what is known of request i
          batches,  \* the outstanding batches, oldest first
          filled    \* batches that came back and are not retired

vars == <<req, batches, filled>>

Ids == 1..Requests
Prompt(i) == Prompts[((i - 1) % Len(Prompts)) + 1]
Final(i) == Prompt(i) + Tokens  \* length at which request i ends at the latest

\* known: prompt and sampled tokens.  sched: positions given to rows.  settled: positions of rows that
\* came back.  marked: to be preempted when its last row is back.
Nobody(at) == [at |-> at, known |-> 0, sched |-> 0, settled |-> 0, marked |-> FALSE]
Waiting(q) == [q EXCEPT !.at = "queued", !.sched = 0, !.settled = 0, !.marked = FALSE]

\* A row is <<request, first position, position after the last>>; its token belongs to the latter.
\* owes: blocks of ended requests whose newest row is in this batch; they are free when it is back.
Batch(rows) == [at |-> "queued", rows |-> rows, owes |-> 0]

Max(S) == CHOOSE x \in S : \A y \in S : y <= x
Min(S) == CHOOSE x \in S : \A y \in S : x <= y

RECURSIVE Held(_, _), Owed(_)
Held(r, S) == IF S = {} THEN 0 ELSE LET i == Min(S) IN r[i].sched + Held(r, S \ {i})
Owed(b) == IF b = <<>> THEN 0 ELSE Head(b).owes + Owed(Tail(b))
Free(r, b) == Blocks - Held(r, Ids) - Owed(b)

Live(r) == {i \in Ids : r[i].at \notin {"new", "ended"}}
Running(r) == {i \in Ids : r[i].at \in {"prepared", "dispatched", "filled"}}
InRows(batch) == {row[1] : row \in batch.rows}
\* The outstanding batches with a row of request i.  An ended request's rows are dead.
BatchesOf(b, i) == {j \in 1..Len(b) : i \in InRows(b[j])}

-----------------------------------------------------------------------------
(* Selection *)

\* Running requests that can have a row.
Able(r) == {i \in Running(r) : ~r[i].marked /\ r[i].sched < Final(i) - 1}
\* A row computes all known positions that are left, or the next one, whose token is still awaited.
Want(r, i) == IF r[i].known > r[i].sched THEN r[i].known - r[i].sched ELSE 1

RECURSIVE Wants(_, _)
Wants(r, S) == IF S = {} THEN 0 ELSE LET i == Min(S) IN Want(r, i) + Wants(r, S \ {i})

\* Youngest first, as many as it takes.
RECURSIVE Victims(_, _, _)
Victims(r, S, missing) ==
    IF missing <= 0 \/ S = {} THEN {}
    ELSE LET v == Max(S) IN {v} \cup Victims(r, S \ {v}, missing - r[v].sched)

\* Request i lacks a block: who gives way to it and its elders?  What is coming anyway counts.
MakeRoom(r, b, i) ==
    LET leaving == {k \in Running(r) : r[k].marked \/ r[k].sched >= Final(k) - 1}
        needed  == Wants(r, {k \in Able(r) : k <= i})
        missing == needed - Free(r, b) - Owed(b) - Held(r, leaving)
    IN Victims(r, {k \in Running(r) \ leaving : k > i}, missing)

Mark(r, b, V) ==
    [k \in Ids |-> IF k \notin V THEN r[k]
                   ELSE IF BatchesOf(b, k) = {} THEN Waiting(r[k])
                   ELSE [r[k] EXCEPT !.marked = TRUE]]

\* The running requests that get a row, and whether all that can have one do.
RECURSIVE Plan(_, _)
Plan(r, b) ==
    LET lacking == {i \in Able(r) : Wants(r, {k \in Able(r) : k <= i}) > Free(r, b)}
    IN IF lacking = {} THEN [req |-> r, run |-> Able(r), complete |-> TRUE]
       ELSE LET first == Min(lacking)
                V == MakeRoom(r, b, first)
            IN IF V # {} THEN Plan(Mark(r, b, V), b)
               ELSE [req |-> r, run |-> {k \in Able(r) : k < first}, complete |-> FALSE]

\* Waiting requests, first in line only, while what they must compute fits.
RECURSIVE Admitted(_, _, _)
Admitted(r, W, spare) ==
    IF W = {} THEN {}
    ELSE LET i == Min(W)
         IN IF r[i].known > spare THEN {} ELSE {i} \cup Admitted(r, W \ {i}, spare - r[i].known)

Select ==
    LET plan == Plan(req, batches)
        r == plan.req
        line == {i \in Ids : r[i].at = "queued"}
        new == IF plan.complete
               THEN Admitted(r, line, Free(r, batches) - Wants(r, plan.run)) ELSE {}
        chosen == plan.run \cup new
        rows == {<<i, r[i].sched, r[i].sched + Want(r, i)>> : i \in chosen}
    IN /\ req' = [i \in Ids |->
                    IF i \notin chosen THEN r[i]
                    ELSE [r[i] EXCEPT !.sched = @ + Want(r, i),
                                      !.at = IF @ \in {"queued", "filled"} THEN "prepared" ELSE @]]
       /\ batches' = IF chosen = {} THEN batches ELSE Append(batches, Batch(rows))

-----------------------------------------------------------------------------
(* Ends and dispatch *)

\* End the requests in E: their blocks are free, or owed by the batch with their newest row.
Ended(r, E) == [i \in Ids |-> IF i \in E THEN Nobody("ended") ELSE r[i]]
Owing(r, b, E) ==
    [j \in 1..Len(b) |->
        [b[j] EXCEPT !.owes =
            @ + Held(r, {i \in E : BatchesOf(b, i) # {} /\ Max(BatchesOf(b, i)) = j})]]

\* Dispatch the first batch if it is prepared: all older ones are back, so every token is known.
Dispatch(r, b) ==
    IF b # <<>> /\ b[1].at = "prepared"
    THEN /\ batches' = [b EXCEPT ![1].at = "dispatched"]
         /\ req' = [i \in Ids |-> IF i \in InRows(b[1]) \cap Live(r)
                                  THEN [r[i] EXCEPT !.at = "dispatched"] ELSE r[i]]
    ELSE /\ batches' = b
         /\ req' = r

-----------------------------------------------------------------------------
(* Events *)

Arrive ==
    \E i \in Ids :
        /\ req[i].at = "new"
        /\ \A k \in Ids : k < i => req[k].at # "new"
        /\ req' = [req EXCEPT ![i] = [Nobody("queued") EXCEPT !.known = Prompt(i)]]
        /\ UNCHANGED <<batches, filled>>

Cancel ==
    \E i \in Live(req) :
        /\ req' = Ended(req, {i})
        /\ batches' = Owing(req, batches, {i})
        /\ UNCHANGED filled

Building == batches # <<>> /\ batches[Len(batches)].at = "queued"

HostReady ==
    /\ ~Building
    /\ filled' = 0
    /\ IF Len(batches) <= Lookahead THEN Select ELSE UNCHANGED <<req, batches>>

Prepared ==
    /\ Building
    /\ Dispatch(req, [batches EXCEPT ![Len(batches)].at = "prepared"])
    /\ UNCHANGED filled

\* The first batch comes back; the requests in eos end with it, and those that have all their tokens.
Executed ==
    /\ batches # <<>> /\ batches[1].at = "dispatched"
    /\ filled' = filled + 1
    /\ \E eos \in SUBSET (InRows(batches[1]) \cap Live(req)) :
        LET back == InRows(batches[1]) \cap Live(req)
            rest == Tail(batches)
            end(i) == (CHOOSE row \in batches[1].rows : row[1] = i)[3]
            ends == {i \in back : i \in eos \/ req[i].known + 1 >= Final(i)}
            goes(i) ==
                LET q == [req[i] EXCEPT !.known = @ + 1, !.settled = end(i)]
                IN IF BatchesOf(rest, i) # {} THEN [q EXCEPT !.at = "prepared"]
                   ELSE IF q.marked THEN Waiting(q)
                   ELSE [q EXCEPT !.at = "filled"]
            moved == [i \in Ids |-> IF i \in back \ ends THEN goes(i) ELSE req[i]]
        IN Dispatch(Ended(moved, ends), Owing(req, rest, ends))

Init == /\ req = [i \in Ids |-> Nobody("new")]
        /\ batches = <<>>
        /\ filled = 0

Next == Arrive \/ Cancel \/ HostReady \/ Prepared \/ Executed
Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* What must hold *)

\* No block is given out twice, and none is lost when nothing is left.
Conserved == /\ Free(req, batches) >= 0
             /\ (Live(req) = {} /\ batches = <<>>) => Free(req, batches) = Blocks

\* Only the first batch is on the NPU, and only the last one under construction.
InOrder == \A j \in 1..Len(batches) :
              /\ batches[j].at = "dispatched" => j = 1
              /\ batches[j].at = "queued" => j = Len(batches)
              /\ Len(batches) <= Lookahead + 1

\* A dispatched live row reads nothing but known tokens; a prepared one awaits what older rows sample.
NoSpeculation ==
    \A j \in 1..Len(batches) : \A row \in batches[j].rows :
        row[1] \in Live(req) =>
            row[3] <= req[row[1]].known + Cardinality({k \in BatchesOf(batches, row[1]) : k < j})

\* What rows were given is what came back and what is outstanding.
Ledger ==
    \A i \in Running(req) :
        LET B == BatchesOf(batches, i)
            out(j) == CHOOSE row \in batches[j].rows : row[1] = i
        IN IF B = {} THEN req[i].sched = req[i].settled
           ELSE out(Min(B))[2] = req[i].settled /\ out(Max(B))[3] = req[i].sched

StateFollowsOldestRow ==
    \A i \in Live(req) :
        LET B == BatchesOf(batches, i)
        IN req[i].at = IF B # {}
                       THEN IF batches[Min(B)].at = "dispatched" THEN "dispatched" ELSE "prepared"
                       ELSE IF req[i].sched > 0 THEN "filled" ELSE "queued"

\* That whoever has arrived ends is checked with Spin, on overlap.pml: fairness wants ENABLED, for
\* which TLC evaluates the recursive definitions above again and again.
=============================================================================
