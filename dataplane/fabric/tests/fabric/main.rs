//! Adapters and links as their users see them: through the contract of `pollux-verbs`.

mod capture;
mod first_words;
mod hostile;
#[path = "../common/manage.rs"]
mod manage;
mod pair;
mod processes;
mod rules;
mod scenarios;
#[path = "../common/served.rs"]
mod served;
mod threads;
