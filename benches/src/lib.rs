//! The harness: the cost of Pollux, and that of other programs on the same cores in the same run.
//!
//! Read in this order:
//!
//! 1. [`plan`]: the measurements; [`pair`]: the two ends of one, in threads or processes;
//!    [`exchange`]: the control connection between them; [`remote`]: ends on two hosts; [`rounds`]:
//!    several measurements of a plan, [`campaign`]: of many plans from a file; [`stored`]: a run as
//!    a file, `run_text`: as text, [`mod@diff`]: what moved from one to another, [`report`]: as a
//!    page, a drawing, or values for other programs;
//! 2. [`verbs`], [`sockets`]: the layers; [`verbs_plan`]: how queue pairs are used; [`programs`]:
//!    sockets at their defaults; [`payload`]: what messages carry, and how receivers check it;
//!    [`mod@echo`]: the engine without sockets; [`bring_up`]: a subnet from cables to active ports;
//!    [`samples`]: histograms, rates and schedules;
//! 3. [`peers`]: programs of others, and [`machine`]: the limits of the cores, of which
//!    [`controls`] stand beside every run; [`cpu`]: the cores that an end keeps busy;
//! 4. [`isolation`]: latency with and without a storm of management; [`scaling`]: two workers
//!    against one; [`datagrams`]: both ends of UDP in a thread; [`null_router`]: a router without
//!    links, [`forward`]: its highest rate, [`rfc2544`]: loss and latency at lower rates;
//! 5. [`compare`]: our figures and those of peers, interleaved, as ratios; [`judgement`]: what
//!    these allow to say, [`disturbance`]: which of them do not count; [`environment`]: the
//!    machine; [`mod@error`]: why a measurement fails.
//!
//! # Missed budgets, and why
//!
//! The table is in the README, by `scripts/readme-costs`, and its run in `benches/costs.json`; the
//! figures below are of older runs on the same machine.
//!
//! **RC between threads.** A round trip of a cache line moves one line that both sides write. A
//! message needs two lines, and so does its reply: 194 to 208 ns each way on those cores, however
//! short the code. The rest are instructions, which the bench `instructions` counts.
//!
//! **RDMA write.** UCX's processes store into each other's memory. Here a write is a message in a
//! ring, and the device of the other end executes it when that is polled.
//!
//! **Rate of short messages.** The same two lines per message. The remedy is several messages in
//! one slot of a ring.
//!
//! **UDP and TCP, one message at a time.** The adapter takes 0.34 us of 1.05 us. Both ends of UDP
//! in one thread took 1.25 us per round trip: 13 % copies received data, 6 % reads the clock, and
//! an empty poll costs 77 ns. TCP adds 7,800 instructions per round trip (the bench `sockets` of
//! `pollux`): segments, checksums, timers and lookups.
//!
//! **UDP, the 99.9th percentile.** The cores of that machine are not isolated, so this shows other
//! load; `--fifo 50` shuts it out.
//!
//! **Forwarding with a million routes.** A packet takes 42 ns, which misses the budget; the 29 ns
//! with one route meet theirs. Look-ups wait for memory, those of a batch together. testpmd takes
//! 20 ns: it looks nothing up, only writes Ethernet addresses, and its device writes no packets.
//!
//! **A connection for each 64 KiB.** Half of the time is the kernel's, in switches between a thread
//! of the program and the worker of its interface, which yield one core to each other: 109 switches
//! a connection. Copies take a tenth. Inline sockets, without these switches, take 0.8 of the
//! kernel's time.
//!
//! **The first connection.** 2.3 ms of 2.5 find the neighbor (ARP) and the path (a query to the
//! subnet manager), and set up the reliable connection (three CM messages). The threads of control
//! and of the fabric sleep; 24 times one has to be woken.
//!
//! **A request every 10 ms.** To wake a core takes 50 to 75 us on that machine, and the ratios
//! spread as that does.
//!
//! # Without a budget
//!
//! TCP from TUN to TUN over IPoIB (`scripts/tun-stream`) has 0.34 to 0.98 of the throughput of
//! Linux between two veths, on two cores that do all of it. A byte is copied five times there and
//! two times by Linux, and two nodes and a fabric wake each other.
#![forbid(unsafe_code)]

pub mod bring_up;
pub mod campaign;
pub mod compare;
pub mod controls;
pub mod cpu;
pub mod datagrams;
pub mod diff;
pub mod disturbance;
pub mod echo;
pub mod environment;
pub mod error;
pub mod exchange;
pub mod forward;
pub mod isolation;
pub mod judgement;
pub mod machine;
pub mod null_router;
pub mod pair;
pub mod payload;
pub mod peers;
pub mod plan;
pub mod programs;
pub mod remote;
pub mod report;
pub mod rfc2544;
pub mod rounds;
mod run_text;
pub mod samples;
pub mod scaling;
pub mod sockets;
pub mod stored;
pub mod verbs;
pub mod verbs_plan;
