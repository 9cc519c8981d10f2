//! The harness: what Pollux costs, beside what others cost on the same cores in the same run.
//!
//! Read in this order:
//!
//! 1. [`plan`]: what can be measured; [`pair`]: two ends that do it, in threads or processes;
//! 2. [`verbs`], [`sockets`]: the layers, and [`mod@echo`]: the engine without any; [`samples`]:
//!    how times are counted;
//! 3. [`peers`]: programs of others, and [`machine`]: what the cores can do at best;
//! 4. [`compare`]: all of that in turns, as ratios; [`environment`]: where it was measured.
//!
//! # Where budgets are missed, and why
//!
//! The table is in the README. All figures are of a virtual machine of two cores that others kept
//! busy, at real-time priority (`--fifo 50`), 21 November 2026.
//!
//! **RC between threads** (4.2 x half a cache line to and fro; 1.5 x is wanted). A line to and fro
//! is one line that both sides write. A message has two lines of its own, and so has its answer:
//! two lines each way cost 194 to 208 ns on those cores however short the code is, more than 1.5 x
//! of one. The rest are our instructions: the bench `instructions` counts them.
//!
//! **Rate of short messages** (0.9 x UCX; 2 x is wanted). The same transfers: two lines a message.
//! What it would take is fewer of them: several short messages in one slot of a lane.
//!
//! **UDP and TCP, one message at a time** (0.74 x and 1.0 x the kernel; 0.25 x and 0.2 x are
//! wanted). The adapter has 0.36 us of the 2 us; the rest is how often everything is looked at. A
//! profile of the end that asks (`perf record`, UDP, samples of that thread) has
//!
//! | where | before | now |
//! |---|---|---|
//! | `pollux_node::interface::Interface::step`, with what is inlined there | 37 to 40 % | 19 % |
//! | the lane of the device that is looked at (`ProcessLink::receive`) | 4 to 6 % | 12 % |
//! | reading the clock: once a step, and once a poll of the device | 9 to 13 % | 8 % |
//! | control's timers (`Reporter::due`) | 5 to 7 % | 0.7 % |
//!
//! "Before" every turn asked control when it next has something to do, and every packet told it of
//! its neighbour; without that UDP went from 2.30 to 2.16 us and TCP from 3.87 to 3.48 us, where
//! others' load was the same. Packets for sockets still passed through control then; since they do
//! not, nothing was measured here. What it would take beside that: one look at the device a turn,
//! not one for each completion queue, and one reading of the clock for all of it.
//!
//! **TCP, one flow** (0.48 x iperf3). Both ends are idle for most of the time: the same profile
//! shows them look in vain, and copies are 3 %. What it would take is to find out what the window
//! waits for.
//!
//! **Forwarding**: nothing here forwards yet. What stands beside testpmd is an echo: a worker that
//! takes packets of 64 octets from the device of nothing as datagrams, asks whose they are, turns
//! them round, finds their way back among 1,000 neighbours, and sends them in batches. It has 10.4
//! Mpps on one core, 96 ns or 221 cycles of 2.3 GHz a packet, and testpmd 30.0 (0.35 x; 0.6 x is
//! wanted); medians of three, `--quick --fifo 50`, load of 10 to 16, 22 November 2026. It is 960
//! instructions a packet (the bench `echo` of `dataplane`), of which the bench `instructions` there
//! has some 500 for a receive and a send in batches of 32: that is what there is to shorten.
//! testpmd changes Ethernet addresses and nothing else, and its device does not write the packets
//! that come; ours does.
#![forbid(unsafe_code)]

pub mod bring_up;
pub mod compare;
pub mod echo;
pub mod environment;
pub mod error;
pub mod exchange;
pub mod machine;
pub mod pair;
pub mod peers;
pub mod plan;
pub mod samples;
pub mod sockets;
pub mod verbs;
