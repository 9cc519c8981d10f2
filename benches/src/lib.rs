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
//! The table is in the README, of a virtual machine of two cores, 22 November 2026; TCP, one
//! message at a time, of a later run than the rest.
//!
//! **RC between threads** (3.4 x half a cache line to and fro; 1.5 x is wanted). A line to and fro
//! is one line that both sides write. A message has two lines of its own, and so has its answer:
//! two lines each way cost 194 to 208 ns on those cores however short the code is, more than 1.5 x
//! of one. The rest are our instructions: the bench `instructions` counts them.
//!
//! **Rate of short messages** (1.04 x UCX; 2 x is wanted). The same transfers: two lines a message.
//! What it would take is fewer of them: several short messages in one slot of a lane.
//!
//! **UDP and TCP, one message at a time** (0.45 x and 0.47 x the kernel; 0.25 x and 0.2 x are
//! wanted). The adapter has 0.34 us of the 1.05 us. Both ends of UDP in one thread, where no line
//! goes from core to core, took 1.25 us a round trip in the quickest of many batches: 13 % of that
//! is copying what has come from the lane to its buffer, 6 % reading the clock, 5 % writing the
//! lane (`perf record`), and no other function has as much. So what it would take is fewer
//! instructions all along; and a look that finds nothing costs 77 ns, of which a message waits
//! half: one look at the device a turn, not one for each completion queue.
//! TCP is that and 7,800 instructions a round trip, of both stacks (the bench `sockets` of
//! `pollux`): of its 11,385, 3,300 are smoltcp's and a checksum for two segments that go, 2,200
//! smoltcp's for two that come, 1,800 find out when a connection is due, which nobody waits for,
//! and the rest is lookups, parsing and checksums. What it would take is a way past smoltcp for
//! the segment that is expected.
//!
//! **The same, 99.9 %** (0.64 x the kernel; 0.1 x is wanted; other runs had 0.04 x and 1.2 x).
//! Nobody has the two cores alone here, so this shows who else ran. With `--fifo 50` nobody else
//! does; but the thread that waits for a process's end has that priority too, and once stood still
//! in the kernel behind one that got no core any more.
//!
//! **Forwarding**: nothing here forwards yet. What stands beside testpmd is an echo: a worker that
//! takes packets of 64 bytes from the device of nothing as datagrams, asks whose they are, turns
//! them round, finds their way back among 1,000 neighbors, and sends them in batches. It has 10.3
//! Mpps on one core, 97 ns a packet, and testpmd 33.6 (0.31 x; 0.6 x is wanted). That is 799
//! instructions a packet (the bench `echo` of `dataplane`), of which the bench
//! `instructions` there has some 420 for a receive and a send in batches of 32. What is left: 156
//! for the device to fill a receive, 106 for two lookups, and the moving of what is known of a
//! packet, 64 bytes when it has come and 48 when it goes.
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
