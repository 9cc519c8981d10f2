//! Questions to a node: what it knows itself, it says; with all else it goes from worker to worker.
//!
//! A question about all interfaces has the answer of all workers, and one about a peer that of the
//! first worker which has a way there. Workers hear questions when they keep house, and answer when
//! they can: whoever asks asks again until then ([`crate::admin`]).

use super::worker_handle::WorkerHandle;
use crate::admin::CONNECTIONS_MAX;
use pollux_dataplane::engine::counts::{Counts, WorkerCounts};
use pollux_dataplane::engine::idle::Idle;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};

/// Questions that are under way, at most: all that the socket takes, and as many that it has given
/// up.
const UNDER_WAY_MAX: usize = 2 * CONNECTIONS_MAX;
/// Those of them that ask for an echo, which may take seconds: others always have room.
const PINGS_MAX: usize = CONNECTIONS_MAX * 3 / 4;

/// What a worker says to a question.
#[derive(Debug)]
pub(super) enum Answer {
    /// A row for each thing that it has; others may have more.
    Rows(Vec<Value>),
    /// This.
    One(Value),
    /// Nothing here; perhaps somebody else. If nobody else, then why.
    Elsewhere(Unanswered),
    /// Nothing yet, and why.
    Later(String),
    /// Nothing, and why.
    No(String),
}

/// Why there is no answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unanswered {
    /// There is none.
    No(String),
    /// There may be one soon.
    Later(String),
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
    elsewhere: Option<Unanswered>,
    is_ping: bool,
}

impl Questions {
    /// The answer to a question, as JSON; nothing as long as there is none.
    pub(super) fn answer(
        &mut self,
        number: u64,
        question: &str,
        handles: &mut [WorkerHandle],
        counts: &Counts,
    ) -> Option<String> {
        let words: Vec<_> = question.split_whitespace().collect();
        let answer = match words[..] {
            ["show", "workers"] => Ok(workers(handles, counts)),
            ["idle", name] => set_idle(name, None, handles).map_err(Unanswered::No),
            ["idle", name, worker] => set_idle(name, Some(worker), handles).map_err(Unanswered::No),
            _ => self.ask(number, question, handles)?,
        };
        let answer = match answer {
            Ok(value) => json!({ "ok": value }),
            Err(Unanswered::No(error)) => json!({ "error": error }),
            Err(Unanswered::Later(why)) => json!({ "later": why }),
        };
        Some(answer.to_string())
    }

    /// Goes on with a question; gives the answer once it has gone round.
    fn ask(
        &mut self,
        number: u64,
        question: &str,
        handles: &mut [WorkerHandle],
    ) -> Option<Result<Value, Unanswered>> {
        if !self.0.contains_key(&number) {
            let is_ping = question.starts_with("ping");
            let pings = self.0.values().filter(|one| one.is_ping).count();
            if is_ping && pings >= PINGS_MAX {
                let why = format!("{pings} echo requests are pending already");
                return Some(Err(Unanswered::Later(why)));
            }
            if self.0.len() == UNDER_WAY_MAX {
                self.0.pop_first();
            }
            self.0.insert(number, UnderWay::new(is_ping));
        }
        let under_way = self.0.get_mut(&number)?;
        let answer = under_way.go_round(number, question, handles)?;
        self.0.remove(&number);
        Some(answer)
    }
}

impl UnderWay {
    const fn new(is_ping: bool) -> Self {
        Self { worker: 0, answer: None, rows: None, elsewhere: None, is_ping }
    }

    fn go_round(
        &mut self,
        number: u64,
        words: &str,
        handles: &mut [WorkerHandle],
    ) -> Option<Result<Value, Unanswered>> {
        while let Some(handle) = handles.get_mut(self.worker) {
            let Some(answer) = &self.answer else {
                let (sender, receiver) = sync_channel(1);
                // One that has no room now is asked when the question is put again.
                handle.ask(Question { number, words: words.into(), answer: sender })?;
                self.answer = Some(receiver);
                continue;
            };
            match answer.try_recv() {
                Err(TryRecvError::Empty) => return None,
                Err(TryRecvError::Disconnected) => {
                    let why = format!("worker {} has ended; see the log of the node", self.worker);
                    return Some(Err(Unanswered::No(why)));
                }
                Ok(Answer::One(value)) => return Some(Ok(value)),
                Ok(Answer::No(why)) => return Some(Err(Unanswered::No(why))),
                Ok(Answer::Later(why)) => return Some(Err(Unanswered::Later(why))),
                Ok(Answer::Rows(rows)) => self.rows.get_or_insert_default().extend(rows),
                // One that may answer soon counts more than all that never will.
                Ok(Answer::Elsewhere(why)) => match &self.elsewhere {
                    Some(Unanswered::Later(_)) => {}
                    _ => self.elsewhere = Some(why),
                },
            }
            (self.worker, self.answer) = (self.worker + 1, None);
        }
        if let Some(mut rows) = self.rows.take() {
            rows.sort_by_key(|row| row["interface"].as_str().map(String::from));
            return Some(Ok(rows.into()));
        }
        let nobody = || {
            Unanswered::No(
                "the node has no interface; add [interface.ib0] to its configuration".into(),
            )
        };
        Some(Err(self.elsewhere.take().unwrap_or_else(nobody)))
    }
}

/// How workers rest from now on: all, or the one of this number.
fn set_idle(name: &str, worker: Option<&str>, handles: &[WorkerHandle]) -> Result<Value, String> {
    let idle = Idle::named(name);
    let idle =
        idle.ok_or(format!("{name:?} is not an idle strategy; write poll, pause or adaptive"))?;
    let chosen = match worker {
        None => handles,
        Some(number) => {
            let handle = number.parse().ok().and_then(|number: usize| handles.get(number..=number));
            handle.ok_or(format!(
                "there is no worker {number}; list them with `pollux show workers`"
            ))?
        }
    };
    chosen.iter().for_each(|handle| handle.set_idle(idle));
    Ok(Value::Null)
}

/// What is known of workers without asking them: one that hangs is shown, too.
fn workers(handles: &[WorkerHandle], counts: &Counts) -> Value {
    let fd = counts.as_fd().as_raw_fd();
    let memory = format!("/proc/{}/fd/{fd}", std::process::id());
    let row = |(number, (handle, counts)): (usize, (&WorkerHandle, Option<WorkerCounts>))| {
        let counts = counts.unwrap_or_default();
        json!({
            "worker": number,
            "core": handle.core(),
            "idle": handle.idle().name(),
            "interfaces": handle.interfaces(),
            "breaths": counts.breaths,
            "busy_breaths": counts.busy_breaths,
            "packets": counts.packets,
            "sleeps": counts.sleeps,
            "asleep_ms": counts.asleep_nanos / 1_000_000,
            "busy_ms": counts.busy_nanos / 1_000_000,
            "memory": memory,
        })
    };
    handles.iter().zip(counts.read()).enumerate().map(row).collect()
}
