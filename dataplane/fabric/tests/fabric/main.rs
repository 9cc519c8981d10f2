//! Adapters and links as their users see them: through the contract of `pollux-verbs`.

mod capture;
mod fetched;
mod first_words;
mod hostile;
mod lanes;
mod leased;
#[path = "../common/managed.rs"]
mod managed;
mod management;
mod migration;
#[path = "../common/net_world.rs"]
#[allow(dead_code, reason = "time is virtual, and all processes run")]
mod net_world;
mod pair;
#[path = "../common/pair_world.rs"]
mod pair_world;
mod partitions;
mod processes;
mod regions;
mod rerouting;
mod routers;
mod rules;
mod scenarios;
#[path = "../common/served.rs"]
mod served;
mod shared_port;
mod short_way;
mod sleeping;
mod threads;
mod time;
mod unchanged;
