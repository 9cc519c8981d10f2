//! Questions to a node: what it knows itself, it says; with all else it goes from worker to worker.
//!
//! A question about all interfaces has the answer of all workers, and one about a peer that of the
//! first worker which has a way there. Workers hear questions when they keep house, and answer when
//! they can: whoever asks asks again until then ([`crate::admin`]).

use super::desk::Desk;
use pollux_dataplane::engine::counts::{Counts, WorkerCounts};
use pollux_dataplane::engine::idle::Idle;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};

/// Questions that are under way, at most: more than the socket takes.
const UNDER_WAY_MAX: usize = 64;

/// What a worker says to a question.
#[derive(Debug)]
pub(super) enum Answer {
    /// A row for each thing that it has; others may have more.
    Rows(Vec<Value>),
    /// This.
    One(Value),
    /// Nothing here; perhaps somebody else. If nobody else, then why.
    Elsewhere(String),
    /// Nothing, and why.
    No(String),
}

/// A question on its way to a worker.
pub(super) struct Question {
    pub(super) number: u64,
    pub(super) words: String,
    pub(super) answer: SyncSender<Answer>,
}

/// Questions that are under way, by their numbers.
#[derive(Default)]
pub(super) struct Questions(BTreeMap<u64, UnderWay>);

/// A question that some workers have answered.
struct UnderWay {
    /// Whose turn it is.
    worker: usize,
    /// Its answer, once it was asked.
    answer: Option<Receiver<Answer>>,
    rows: Option<Vec<Value>>,
    elsewhere: Option<String>,
}

impl Questions {
    /// The answer to a question, as JSON; nothing as long as there is none.
    pub(super) fn answer(
        &mut self,
        number: u64,
        question: &str,
        desks: &mut [Desk],
        counts: &Counts,
    ) -> Option<String> {
        let words: Vec<_> = question.split_whitespace().collect();
        let answer = match words[..] {
            ["show", "workers"] => Ok(workers(desks, counts)),
            ["idle", name] => set_idle(name, None, desks),
            ["idle", name, worker] => set_idle(name, Some(worker), desks),
            _ => self.ask(number, question, desks)?,
        };
        let answer = match answer {
            Ok(value) => json!({ "ok": value }),
            Err(error) => json!({ "error": error }),
        };
        Some(answer.to_string())
    }

    /// Goes on with a question; gives the answer once it has gone round.
    fn ask(
        &mut self,
        number: u64,
        question: &str,
        desks: &mut [Desk],
    ) -> Option<Result<Value, String>> {
        if self.0.len() == UNDER_WAY_MAX && !self.0.contains_key(&number) {
            self.0.pop_first();
        }
        let under_way = self.0.entry(number).or_insert_with(UnderWay::new);
        let answer = under_way.go_round(number, question, desks)?;
        self.0.remove(&number);
        Some(answer)
    }
}

impl UnderWay {
    const fn new() -> Self {
        Self { worker: 0, answer: None, rows: None, elsewhere: None }
    }

    fn go_round(
        &mut self,
        number: u64,
        words: &str,
        desks: &mut [Desk],
    ) -> Option<Result<Value, String>> {
        while let Some(desk) = desks.get_mut(self.worker) {
            let Some(answer) = &self.answer else {
                let (sender, receiver) = sync_channel(1);
                // One that has no room now is asked when the question is put again.
                desk.ask(Question { number, words: words.into(), answer: sender })?;
                self.answer = Some(receiver);
                continue;
            };
            match answer.try_recv() {
                Err(TryRecvError::Empty) => return None,
                Err(TryRecvError::Disconnected) => {
                    return Some(Err(format!("worker {} does not answer any more", self.worker)));
                }
                Ok(Answer::One(value)) => return Some(Ok(value)),
                Ok(Answer::No(why)) => return Some(Err(why)),
                Ok(Answer::Rows(rows)) => self.rows.get_or_insert_default().extend(rows),
                Ok(Answer::Elsewhere(why)) => self.elsewhere = Some(why),
            }
            (self.worker, self.answer) = (self.worker + 1, None);
        }
        if let Some(mut rows) = self.rows.take() {
            rows.sort_by_key(|row| row["interface"].as_str().map(String::from));
            return Some(Ok(rows.into()));
        }
        Some(Err(self.elsewhere.take().unwrap_or_default()))
    }
}

/// How workers rest from now on: all, or the one of this number.
fn set_idle(name: &str, worker: Option<&str>, desks: &[Desk]) -> Result<Value, String> {
    let idle = Idle::named(name);
    let idle = idle.ok_or(format!("{name:?} is no way to rest; say poll, pause or adaptive"))?;
    let chosen = match worker {
        None => desks,
        Some(number) => {
            let desk = number.parse().ok().and_then(|number: usize| desks.get(number..=number));
            desk.ok_or(format!("there is no worker {number}; `pollux show workers` has them all"))?
        }
    };
    chosen.iter().for_each(|desk| desk.set_idle(idle));
    Ok(Value::Null)
}

/// What is known of workers without asking them: one that hangs is shown, too.
fn workers(desks: &[Desk], counts: &Counts) -> Value {
    let fd = counts.as_fd().as_raw_fd();
    let memory = format!("/proc/{}/fd/{fd}", std::process::id());
    let row = |(number, (desk, counts)): (usize, (&Desk, Option<WorkerCounts>))| {
        let counts = counts.unwrap_or_default();
        json!({
            "worker": number,
            "core": desk.core(),
            "idle": desk.idle().name(),
            "interfaces": desk.interfaces(),
            "breaths": counts.breaths,
            "busy_breaths": counts.busy_breaths,
            "packets": counts.packets,
            "sleeps": counts.sleeps,
            "asleep_ms": counts.asleep_nanos / 1_000_000,
            "busy_ms": counts.busy_nanos / 1_000_000,
            "memory": memory,
        })
    };
    desks.iter().zip(counts.read()).enumerate().map(row).collect()
}
