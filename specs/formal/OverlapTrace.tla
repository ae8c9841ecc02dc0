---------------------------- MODULE OverlapTrace ----------------------------
(***************************************************************************)
(* Runs of the real kernel, judged by Overlap.  Each line says which event *)
(* it was and how the kernel stood after it, so nothing is left to guess.  *)
(* A run that Overlap cannot follow to its end is a deadlock.              *)
(***************************************************************************)
EXTENDS Overlap

CONSTANT Runs  \* a sequence of runs: sequences of [do, req, batches, filled]
VARIABLES run, line

Steps == Runs[run]
Taken(action) ==
    CASE action = "Arrive"    -> Arrive
      [] action = "Cancel"    -> Cancel
      [] action = "HostReady" -> HostReady
      [] action = "Prepared"  -> Prepared
      [] action = "Executed"  -> Executed

TraceInit == Init /\ run \in 1..Len(Runs) /\ line = 0

Follow == /\ line < Len(Steps)
          /\ line' = line + 1
          /\ UNCHANGED run
          /\ req' = Steps[line'].req
          /\ batches' = Steps[line'].batches
          /\ filled' = Steps[line'].filled
          /\ Taken(Steps[line'].do)

Done == line = Len(Steps) /\ UNCHANGED <<vars, run, line>>

TraceSpec == TraceInit /\ [][Follow \/ Done]_<<vars, run, line>>
=============================================================================
