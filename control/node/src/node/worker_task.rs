//! The task of a worker thread: some interfaces of the node, questions about them, and secondary
//! workers of other interfaces.

use super::opening::{Interfaces, NamedWorker, Outage, WorkerSenders};
use super::questions::{Answer, Question};
use super::report::Asked;
use super::waker::Waker;
use crate::admin::CONNECTIONS_MAX;
use crate::interface::echo::EchoId;
use crate::interface::{Interface, WorkerPort};
use pollux_dataplane::engine::Work;
use pollux_verbs::time::Time;
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::Duration;

/// How long accepted packets may take to be sent at the end, before interfaces leave.
const SEND_MAX: Duration = Duration::from_millis(500);
/// Questions without an answer yet, at most: as many as the socket takes.
const QUESTIONS_MAX: usize = CONNECTIONS_MAX;

/// The task of one worker thread.
pub(super) struct WorkerTask {
    interfaces: Interfaces,
    /// Secondary workers of interfaces, which may be in other threads, and those to come.
    secondaries: Vec<NamedWorker>,
    arrivals: Receiver<NamedWorker>,
    senders: WorkerSenders,
    /// Echo requests under way, by the numbers of their questions.
    pings: BTreeMap<u64, (String, EchoId)>,
    questions: Vec<Question>,
    /// Packets at the last count, and in all. The first falls when an interface or a secondary
    /// worker ends, the second never does.
    packets: (u64, u64),
    /// The armed device ends a sleep.
    is_woken: bool,
    ending: Option<Ending>,
    notices: SyncSender<String>,
    waker: Waker,
}

/// The phases of the end.
#[derive(Clone, Copy)]
enum Ending {
    Sending { until: Time },
    Leaving,
}

impl WorkerTask {
    /// The task for these interfaces. Changes of their states go to `notices`, whose receiver is
    /// woken.
    pub(super) fn new(
        interfaces: Interfaces,
        (senders, arrivals): (WorkerSenders, Receiver<NamedWorker>),
        notices: SyncSender<String>,
        waker: Waker,
    ) -> Self {
        Self {
            interfaces,
            secondaries: Vec::new(),
            arrivals,
            senders,
            pings: BTreeMap::new(),
            questions: Vec::new(),
            packets: (0, 0),
            is_woken: false,
            ending: None,
            notices,
            waker,
        }
    }

    fn running(&mut self) -> impl Iterator<Item = &mut Interface> {
        self.interfaces.running()
    }

    /// Sends a notice, if there is space for it.
    pub(super) fn notify(&self, notice: String) {
        let _ = self.notices.try_send(notice);
        self.waker.wake();
    }

    /// Answers the questions that can be answered by now.
    fn answer(&mut self, now: Time) {
        let Self { interfaces, pings, questions, senders, waker, .. } = self;
        let mut asked = Asked { interfaces: &mut interfaces.all, pings, senders };
        questions.retain(|question| {
            let Some(answer) = asked.answer(now, question.number, &question.words) else {
                return true;
            };
            // The connection of the question may be closed.
            let _ = question.answer.try_send(answer);
            waker.wake();
            false
        });
    }

    /// Sends a notice for each interface whose state has changed since the last one. Without space
    /// the notice is sent later.
    fn notify_changes(&mut self) {
        for (name, named) in &mut self.interfaces.all {
            // The first attempt to open it is no change.
            if matches!(named.interface, Err(Outage::Pending)) {
                continue;
            }
            let state = named.state();
            if state != named.said && self.notices.try_send(format!("{name}: {state}")).is_ok() {
                named.said = state;
                self.waker.wake();
            }
        }
    }
}

impl Work for WorkerTask {
    type Command = Question;

    fn breathe(&mut self, now: Time) -> bool {
        let mut busy = self.interfaces.step(now, &self.senders);
        self.secondaries.retain_mut(|(_, secondary)| {
            busy |= secondary.step(now);
            secondary.failed().is_none()
        });
        if !self.questions.is_empty() {
            self.answer(now);
        }
        busy
    }

    fn keep_house(&mut self, _: Time) {
        self.secondaries.extend(self.arrivals.try_iter());
        self.notify_changes();
    }

    fn packets(&mut self) -> u64 {
        let secondaries: Vec<_> = self.secondaries.iter().map(|(_, one)| one.driver()).collect();
        let traffic = self.interfaces.all.values().flat_map(|named| &named.interface);
        let traffic = traffic.map(Interface::driver).chain(secondaries);
        let traffic = traffic.map(|one| one.netdev().traffic());
        let sum = traffic.fold(0, |sum, one| {
            let sent = one.datagrams_sent + one.connected_sent;
            sum + sent + one.datagrams_received + one.connected_received
        });
        let (before, all) = self.packets;
        self.packets = (sum, all + sum.saturating_sub(before));
        self.packets.1
    }

    fn poll_timeout(&self) -> Option<Time> {
        let secondaries = self.secondaries.iter().map(|(_, secondary)| secondary.poll_timeout());
        secondaries.chain([self.interfaces.poll_timeout()]).flatten().min()
    }

    fn handle_command(&mut self, _: Time, question: Question) {
        match self.questions.len() < QUESTIONS_MAX {
            true => self.questions.push(question),
            false => {
                let why = "too many questions at once".into();
                let _ = question.answer.try_send(Answer::Later(why));
            }
        }
    }

    fn arm(&mut self) -> bool {
        let armed = self.running().fold(true, |all, one| one.arm() & all);
        // A thread sleeps at one device only.
        let is_one = self.interfaces.have_one_device() && self.secondaries.is_empty();
        self.is_woken = armed && is_one && self.running().next().is_some();
        self.is_woken
    }

    fn wait(&mut self, longest: Duration) {
        let is_woken = self.is_woken;
        match self.running().next() {
            Some(interface) if is_woken => interface.wait(longest),
            _ => std::thread::park_timeout(longest),
        }
    }

    /// Leaves the subnet in order, so that peers need no timeout; but for a limited time.
    fn end(&mut self, now: Time) -> bool {
        match *self.ending.get_or_insert(Ending::Sending { until: now + SEND_MAX }) {
            Ending::Sending { until } => {
                if now >= until || self.running().all(|one| one.is_drained(now)) {
                    self.running().for_each(|one| one.leave(now));
                    self.ending = Some(Ending::Leaving);
                }
                false
            }
            // Secondary workers end once their primary workers have left.
            Ending::Leaving => {
                self.secondaries.is_empty() && self.running().all(|one| one.has_left())
            }
        }
    }
}
