//! The task of a worker thread: some interfaces of the node, questions about them, and secondary
//! workers of other interfaces.

use super::asking::{Answer, Question};
use super::opening::{Colleagues, Interfaces, NamedWorker, Outage};
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

/// How long what was accepted may take to be sent, when leave is to be taken.
const SEND_MAX: Duration = Duration::from_millis(500);
/// Questions that have no answer yet, at most: all that the socket takes.
const QUESTIONS_MAX: usize = CONNECTIONS_MAX;

/// What one worker has to do.
pub(super) struct Duty {
    interfaces: Interfaces,
    /// Secondary workers of interfaces, which may be in other threads, and those to come.
    secondaries: Vec<NamedWorker>,
    arrivals: Receiver<NamedWorker>,
    colleagues: Colleagues,
    /// Echo requests of those who ask, by the numbers of their questions.
    pings: BTreeMap<u64, (String, EchoId)>,
    questions: Vec<Question>,
    /// Packets at the last count, and in all. The first falls when an interface or a secondary
    /// worker ends, the second never does.
    packets: (u64, u64),
    /// It wakes whoever sleeps there.
    is_woken: bool,
    ending: Option<Ending>,
    news: SyncSender<String>,
    waker: Waker,
}

/// How far it is with the end.
#[derive(Clone, Copy)]
enum Ending {
    Sending { until: Time },
    Leaving,
}

impl Duty {
    /// These interfaces. What becomes of them is told by `news`, and whoever hears that is woken.
    pub(super) fn new(
        interfaces: Interfaces,
        (colleagues, arrivals): (Colleagues, Receiver<NamedWorker>),
        news: SyncSender<String>,
        waker: Waker,
    ) -> Self {
        Self {
            interfaces,
            secondaries: Vec::new(),
            arrivals,
            colleagues,
            pings: BTreeMap::new(),
            questions: Vec::new(),
            packets: (0, 0),
            is_woken: false,
            ending: None,
            news,
            waker,
        }
    }

    fn running(&mut self) -> impl Iterator<Item = &mut Interface> {
        self.interfaces.running()
    }

    /// Tells something, if there is room for it.
    pub(super) fn say(&self, news: String) {
        let _ = self.news.try_send(news);
        self.waker.wake();
    }

    /// Answers what can be answered by now.
    fn answer(&mut self, now: Time) {
        let Self { interfaces, pings, questions, colleagues, waker, .. } = self;
        let mut asked = Asked { interfaces: &mut interfaces.all, pings, colleagues };
        questions.retain(|question| {
            let Some(answer) = asked.answer(now, question.number, &question.words) else {
                return true;
            };
            // Whoever asked may have gone.
            let _ = question.answer.try_send(answer);
            waker.wake();
            false
        });
    }

    /// Says what has become of interfaces, where that is not what was said last. What there is no
    /// room for is said later.
    fn tell(&mut self) {
        for (name, named) in &mut self.interfaces.all {
            // That it is opened first is no news.
            if matches!(named.interface, Err(Outage::Pending)) {
                continue;
            }
            let state = named.state();
            if state != named.said && self.news.try_send(format!("{name}: {state}")).is_ok() {
                named.said = state;
                self.waker.wake();
            }
        }
    }
}

impl Work for Duty {
    type Command = Question;

    fn breathe(&mut self, now: Time) -> bool {
        let mut busy = self.interfaces.step(now, &self.colleagues);
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
        self.tell();
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
        // Nobody sleeps at two.
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

    /// What others know of us they shall not find out by silence; but nobody is waited for long.
    fn end(&mut self, now: Time) -> bool {
        match *self.ending.get_or_insert(Ending::Sending { until: now + SEND_MAX }) {
            Ending::Sending { until } => {
                if now >= until || self.running().all(|one| one.is_drained(now)) {
                    self.running().for_each(|one| one.leave(now));
                    self.ending = Some(Ending::Leaving);
                }
                false
            }
            // Secondary workers end when their primary workers have left.
            Ending::Leaving => {
                self.secondaries.is_empty() && self.running().all(|one| one.has_left())
            }
        }
    }
}
