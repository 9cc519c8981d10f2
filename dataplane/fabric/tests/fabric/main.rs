//! Adapters and links as their users see them: through the contract of `pollux-verbs`.

mod capture;
mod first_words;
mod hostile;
#[path = "../managed/mod.rs"]
mod managed;
mod management;
mod pair;
mod rules;
mod scenarios;
mod threads;
