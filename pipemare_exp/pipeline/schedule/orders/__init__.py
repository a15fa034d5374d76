"""Which schedules there are, for any P, N and number of steps, in files by family.

`all_forwards_first`: GPipe. `in_rounds`: 1F1B, interleaved 1F1B, ZB-H1, ZB-H2. `v_shaped`: ZB-V, DualPipe-V. These are
synchronous. `never_flushed`: PipeDream, PipeMare. `placing` makes a schedule of the order in which devices run things.

GPipe, P = 3 stages, N = 2 microbatches a step, two steps. F3 is the forward of microbatch 3, B3 its backward, * an
update at the end of the slot, . an idle slot:

    slot    0  1  2  3  4  5   6   7   8  9  10 11 12 13  14  15
    stage 0 F0 F1 .  .  .  .   B0  B1* F2 F3 .  .  .  .   B2  B3*
    stage 1 .  F0 F1 .  .  B0  B1* .   .  F2 F3 .  .  B2  B3* .
    stage 2 .  .  F0 F1 B0 B1* .   .   .  .  F2 F3 B2 B3* .   .

PipeMare in duplex slots, P = 3, N = 2, four steps. A slot holds a forward and a backward (F6/B1). Nothing is flushed:
in slot 6 stage 0 runs F6, of step 3, and makes its first update only at the end of that slot, so F6 reads version 0:

    slot    0  1  2  3     4      5      6      7      8      9     10  11  12
    stage 0 F0 F1 F2 F3    F4     F5/B0  F6/B1* F7/B2  B3*    B4    B5* B6  B7*
    stage 1 .  F0 F1 F2    F3/B0  F4/B1* F5/B2  F6/B3* F7/B4  B5*   B6  B7* .
    stage 2 .  .  F0 F1/B0 F2/B1* F3/B2  F4/B3* F5/B4  F6/B5* F7/B6 B7* .   .

ZB-H1, P = 3, N = 3, one step. The backward is split: I0 is the input gradient of microbatch 0, W0 its weight gradient.
Stage 1 runs its weight gradients one microbatch later, stage 2 two, in slots in which it would else wait:

    slot    0  1  2  3  4  5  6  7  8  9  10
    stage 0 F0 F1 F2 .  .  I0 W0 I1 W1 I2 W2*
    stage 1 .  F0 F1 .  I0 F2 I1 W0 I2 W1 W2*
    stage 2 .  .  F0 I0 F1 I1 F2 I2 W0 W1 W2*

A generator only says in which order a device runs its operations: in one lane for alternating slots (one operation a
slot), in two for duplex slots (a lane of forwards and a lane of backwards). `event_walk.starts` then gives every
operation the earliest slot that its dependencies allow.

With stages counted from 0, this is the result. Duplex slots: the forward of microbatch g at stage s runs in slot g + s,
its backward L_s = 2(P - 1 - s) + 1 slots later, in slot g + 2P - 1 - s. Alternating slots: between the two lie
L_s = P - 1 - s backwards of other microbatches.
"""

from pipemare_exp.pipeline.schedule.orders.all_forwards_first import gpipe
from pipemare_exp.pipeline.schedule.orders.in_rounds import interleaved, one_f_one_b, zb_h1, zb_h2
from pipemare_exp.pipeline.schedule.orders.never_flushed import pipedream, pipemare
from pipemare_exp.pipeline.schedule.orders.v_shaped import dualpipe_v, zb_v

__all__ = ["dualpipe_v", "gpipe", "interleaved", "one_f_one_b", "pipedream", "pipemare", "zb_h1", "zb_h2", "zb_v"]
