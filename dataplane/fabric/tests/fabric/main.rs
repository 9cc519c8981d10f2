//! Adapters and links as their users see them: through the contract of `pollux-verbs`.

mod beside;
mod capture;
mod first_words;
mod hostile;
mod lanes;
mod lent;
#[path = "../common/managed.rs"]
mod managed;
mod management;
mod migration;
mod pair;
mod partitions;
mod processes;
mod rerouting;
mod routers;
mod rules;
mod scenarios;
#[path = "../common/served.rs"]
mod served;
mod short_way;
mod threads;
mod time;
