//! Adapters and links as their users see them: through the contract of `pollux-verbs`.

mod capture;
mod first_words;
mod hostile;
mod lanes;
mod lent;
#[path = "../managed/mod.rs"]
mod managed;
mod management;
mod pair;
mod rules;
mod scenarios;
mod short_way;
mod threads;
mod time;
