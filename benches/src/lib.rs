//! The harness: measures Pollux, and other programs on the same cores in the same run.
//!
//! Read in this order:
//!
//! 1. [`plan`]: the plan of a measurement; [`pair`]: its two ends, in threads or processes;
//!    [`exchange`]: the control connection between the ends; [`remote`]: ends on two hosts;
//!    [`rounds`]: repeated measurements; [`campaign`]: many plans from a file; [`stored`]: the file
//!    of a run; `run_text`: a run as text; [`mod@diff`]: significant changes between two runs;
//!    [`report`]: a run as a page, a drawing, or data for other programs;
//! 2. [`verbs`], [`sockets`]: the measured layers; [`verbs_plan`]: options of the layer `verbs`;
//!    [`programs`]: programs that make blocking calls on sockets; [`payload`]: message contents and
//!    their check; [`mod@echo`]: the engine without sockets; [`bring_up`]: a subnet from cables to
//!    active ports; [`samples`]: histograms, rates and schedules;
//! 3. [`peers`]: peer programs; [`machine`]: measures the limits of the cores; [`controls`]: the
//!    limits that a run records; [`cpu`]: the CPU usage of an end;
//! 4. [`isolation`]: latency with and without a storm of management requests; [`scaling`]: two
//!    workers against one; [`datagrams`]: both ends of UDP in one thread; [`null_router`]: a router
//!    between null ports; [`forward`]: its highest rate; [`rfc2544`]: its loss and latency at lower
//!    rates;
//! 5. [`compare`]: ratios of our figures to those of peers; [`judgement`]: medians, intervals and
//!    budgets; [`disturbance`]: detects disturbed measurements; [`environment`]: the machine;
//!    [`mod@error`]: why a measurement fails.
//!
//! # Missed budgets, and why
//!
//! `scripts/readme-costs` writes the table in the README from the run in `benches/costs.json`. The
//! figures below are from older runs on the same machine.
//!
//! **RC between threads.** The round trip of a cache line moves one line that both sides write. A
//! message needs two lines, and so does its reply. Moving them takes 194 to 208 ns each way on
//! those cores, even without any other code. Instructions take the rest of the time; the bench
//! `instructions` counts them.
//!
//! **RDMA write.** Processes of UCX store directly into each other's memory. Here, a write is a
//! message in a ring, and the device of the other end executes it when it is polled.
//!
//! **Rate of short messages.** Each message moves the same two cache lines. The remedy would be
//! several messages in one slot of a ring.
//!
//! **UDP and TCP, one message at a time.** The adapter takes 0.34 us of 1.05 us. With both ends of
//! UDP in one thread, a round trip takes 1.25 us: 13 % of it copies received data and 6 % reads the
//! clock; an empty poll costs 77 ns. TCP adds 7,800 instructions per round trip (the bench
//! `sockets` of `pollux`) for segments, checksums, timers and lookups.
//!
//! **UDP, the 99.9th percentile.** The cores of that machine are not isolated, so this percentile
//! shows other load. With `--fifo 50`, other load does not interrupt the ends.
//!
//! **Forwarding with a million routes.** A packet takes 42 ns, which misses the budget. With one
//! route it takes 29 ns, which meets the budget. Lookups wait for memory; the lookups of a batch
//! wait at the same time. testpmd takes 20 ns: it looks up no route and only rewrites Ethernet
//! addresses, and its null device writes no packets.
//!
//! **A connection for each 64 KiB.** Half of the time is spent in the kernel, which switches
//! between a thread of the program and the worker of its interface, because both share one core:
//! 109 switches per connection. Copies take a tenth of the time. Inline sockets need no such
//! switches and take 0.8 times as long as the kernel's sockets.
//!
//! **The first connection.** Of 2.5 ms, 2.3 ms are spent to resolve the neighbor (ARP), to query
//! the path from the subnet manager, and to set up the reliable connection (three CM messages). The
//! control threads and the fabric thread sleep, and are woken 24 times in all.
//!
//! **A request every 10 ms.** Waking a core takes 50 to 75 us on that machine. The ratios vary as
//! much as this time does.
//!
//! # Without a budget
//!
//! TCP from TUN to TUN over IPoIB (`scripts/tun-stream`) has 0.34 to 0.98 times the throughput of
//! Linux between two veth devices, if two cores do all the work. A byte is copied five times, but
//! only twice by Linux, and two nodes and a fabric have to wake each other.
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
