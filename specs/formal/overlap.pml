/* Overlap scheduling in Promela: the same machine as Overlap.tla, written for Spin, which is quick at
 * liveness. One d_step is one event of Kernel.step. A block holds one token.
 *
 *   spin -a -o2 -DR=2 -DNB=3 -DT=3 -DL=1 -DP0=1 -DP1=1 overlap.pml
 *   gcc -DSAFETY -DNOREDUCE -o pan pan.c && ./pan
 *
 * -o2 keeps what is written and never read (from, settled) in the state, -DNOREDUCE every order.
 * R requests, NB blocks, T output tokens at most, L lookahead; prompts of P0 and P1 tokens in turn.
 *   -DPROP=i     the claim: request i, once it has arrived, ends
 *   -DQUIT       the client may leave the game. Weak fairness in Spin is per process: without this the
 *                client, too, has to go on, that is to cancel, and its cancels hide starvation
 *   -DSTARVE     a seeded fault: nobody is ever preempted
 */
#define NEW 0
#define QUEUED 1
#define PREPARED 2
#define DISPATCHED 3
#define FILLED 4
#define ENDED 5

#define P(i)       (((i) % 2) -> P1 : P0)
#define FINAL(i)   (P(i) + T)
#define LIVE(i)    (at[i] != NEW && at[i] != ENDED)
#define RUNNING(i) (at[i] == PREPARED || at[i] == DISPATCHED || at[i] == FILLED)
#define FULL(i)    (sched[i] >= FINAL(i) - 1)
#define ABLE(i)    (RUNNING(i) && !marked[i] && !FULL(i))
#define WANT(i)    ((known[i] > sched[i]) -> (known[i] - sched[i]) : 1)
#define ROW(b, i)  ((b) * R + (i))
#define BACK(i)    (to[ROW(0, i)] > 0 && LIVE(i))

byte at[R], known[R], sched[R], settled[R];
bool marked[R];                /* to be preempted when its last row is back */
byte n;                        /* outstanding batches, oldest first */
byte bat[L + 2];
byte owes[L + 2];              /* blocks of ended requests that are free when the batch is back */
byte from[(L + 2) * R];        /* a row's first position, */
byte to[(L + 2) * R];          /* and the one after its last; 0: no row */
byte filled;                   /* batches that came back and are not retired */

/* Work space, no part of the state. */
hidden byte i, j, k, lack, bound;
hidden int space, sum, missing;
hidden byte found, complete, closed;
hidden byte chosen[R];

inline newest(r)               /* j: the newest outstanding batch from k on with a row of r, or n */
{
	j = n;
	do
	:: k < n -> if :: to[ROW(k, r)] > 0 -> j = k :: else fi; k++
	:: else -> break
	od
}

inline end(r, first)           /* its blocks are free, or owed by its newest batch from first on */
{
	k = first; newest(r);
	if :: j < n -> owes[j] = owes[j] + sched[r] :: else fi;
	at[r] = ENDED; known[r] = 0; sched[r] = 0; settled[r] = 0; marked[r] = 0
}

inline wait(r)
{
	at[r] = QUEUED; sched[r] = 0; settled[r] = 0; marked[r] = 0
}

inline dispatch()
{
	if
	:: n > 0 && bat[0] == PREPARED ->
		bat[0] = DISPATCHED;
		for (i : 0 .. R - 1) {
			if :: BACK(i) -> at[i] = DISPATCHED :: else fi
		}
	:: else
	fi
}

inline count_free()
{
	space = NB;
	for (i : 0 .. R - 1) { space = space - sched[i] }
	for (i : 0 .. L + 1) { space = space - owes[i] }
}

inline find_lack()             /* lack: the first row that lacks a block, or R; sum: needed up to it */
{
	sum = 0; lack = R;
	for (i : 0 .. R - 1) {
		if
		:: lack == R && ABLE(i) ->
			sum = sum + WANT(i);
			if :: sum > space -> lack = i :: else fi
		:: else
		fi
	}
}

inline make_room()             /* mark or preempt the youngest, as few as it takes */
{
	missing = sum - space; found = 0;
	for (i : 0 .. L + 1) { missing = missing - owes[i] }
	for (i : 0 .. R - 1) {
		if :: RUNNING(i) && (marked[i] || FULL(i)) -> missing = missing - sched[i] :: else fi
	}
	i = R - 1;
	do
	:: i > lack && missing > 0 ->
		if
		:: RUNNING(i) && !marked[i] && !FULL(i) ->
			found = 1; missing = missing - sched[i];
			k = 0; newest(i);
			if :: j < n -> marked[i] = 1 :: else -> wait(i) fi
		:: else
		fi;
		i--
	:: else -> break
	od
}

inline plan()                  /* bound: requests before this one may have a row */
{
	complete = 1; bound = R;
	do
	:: count_free(); find_lack();
		if
		:: lack == R -> break
		:: else ->
#ifdef STARVE
			found = 0;
#else
			make_room();
#endif
			if :: !found -> complete = 0; bound = lack; break :: else fi
		fi
	od
}

inline select_rows()
{
	plan();
	for (i : 0 .. R - 1) {
		chosen[i] = (i < bound && ABLE(i));
		if :: chosen[i] -> space = space - WANT(i) :: else fi
	}
	closed = !complete;
	for (i : 0 .. R - 1) {
		if
		:: at[i] == QUEUED && !closed ->
			if
			:: known[i] <= space -> chosen[i] = 1; space = space - known[i]
			:: else -> closed = 1
			fi
		:: else
		fi
	}
	found = 0;
	for (i : 0 .. R - 1) {
		if
		:: chosen[i] ->
			found = 1;
			from[ROW(n, i)] = sched[i];
			sched[i] = sched[i] + WANT(i);
			to[ROW(n, i)] = sched[i];
			if :: at[i] == QUEUED || at[i] == FILLED -> at[i] = PREPARED :: else fi
		:: else
		fi
	}
	if :: found -> bat[n] = QUEUED; n++ :: else fi
}

inline come_back(eos)          /* the first batch is back, and the requests in the mask eos end */
{
	filled++;
	for (i : 0 .. R - 1) {
		if
		:: BACK(i) ->
			known[i] = known[i] + 1;
			settled[i] = to[ROW(0, i)];
			if
			:: ((eos) & (1 << i)) || known[i] >= FINAL(i) -> end(i, 1)
			:: else ->
				k = 1; newest(i);
				if
				:: j < n -> at[i] = PREPARED
				:: j == n && marked[i] -> wait(i)
				:: else -> at[i] = FILLED
				fi
			fi
		:: else
		fi
	}
	for (j : 0 .. n - 1) {
		bat[j] = bat[j + 1]; owes[j] = owes[j + 1];
		for (i : 0 .. R - 1) {
			from[ROW(j, i)] = from[ROW(j + 1, i)];
			to[ROW(j, i)] = to[ROW(j + 1, i)]
		}
	}
	n--;
	dispatch()
}

#define ARRIVE(i) :: d_step { at[i] == NEW -> at[i] = QUEUED; known[i] = P(i) }
#define NEXT(i)   :: d_step { at[i] == NEW && at[i - 1] != NEW -> at[i] = QUEUED; known[i] = P(i) }
#define CANCEL(i) :: d_step { LIVE(i) -> end(i, 0) }
#define BUILDING  (n > 0 && bat[n - 1] == QUEUED)
#define RUNS      (n > 0 && bat[0] == DISPATCHED)

/* The rows in the mask are live rows of the batch that is back. */
#if R == 1
#define LIVE_ROWS(m) (!((m) & 1) || BACK(0))
#elif R == 2
#define LIVE_ROWS(m) ((!((m) & 1) || BACK(0)) && (!((m) & 2) || BACK(1)))
#else
#define LIVE_ROWS(m) ((!((m) & 1) || BACK(0)) && (!((m) & 2) || BACK(1)) && (!((m) & 4) || BACK(2)))
#endif
#define EXECUTED(m) :: d_step { RUNS && LIVE_ROWS(m) -> come_back(m) }

active proctype client()
{
	do
	ARRIVE(0)
	CANCEL(0)
#if R > 1
	NEXT(1)
	CANCEL(1)
#endif
#if R > 2
	NEXT(2)
	CANCEL(2)
#endif
#ifdef QUIT
	:: break
#endif
	od
}

active proctype cpu()
{
	do
	:: d_step {
		!BUILDING ->
		filled = 0;
		if :: n <= L -> select_rows() :: else fi
	}
	:: d_step { BUILDING -> bat[n - 1] = PREPARED; dispatch() }
	od
}

active proctype npu()
{
	do
	EXECUTED(0)
	EXECUTED(1)
#if R > 1
	EXECUTED(2)
	EXECUTED(3)
#endif
#if R > 2
	EXECUTED(4)
	EXECUTED(5)
	EXECUTED(6)
	EXECUTED(7)
#endif
	od
}

#ifdef PROP
ltl ends { [] ((at[PROP] != NEW) -> <> (at[PROP] == ENDED)) }
#endif
