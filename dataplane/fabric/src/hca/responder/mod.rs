//! The receiving half of a connection: requests in, answers out (IBA 9.7.4, 9.7.5, 9.8.3).
//!
//! ```text
//!                        First                        Last, or in one: Only
//!   between messages ------------> within a message ------------------------> between messages
//!          ^                          | Middle: the same message goes on
//!          |                          |
//!          +--- reliable: NAK and error state if the order is wrong; unreliable: message dropped
//! ```
//!
//! A request is executed only when it is the expected one: one ahead is a gap (NAK, once), one
//! behind a duplicate. A duplicate is answered and not executed again; reads are made again from
//! the memory, atomics from what they answered. Answers leave in the order of the requests, so they
//! wait in a queue, where an acknowledgement takes the place of the one before it.

mod execute;
mod sending;

use super::Shared;
use super::memory::is_window;
use super::outlet::Outlet;
use super::port::Drop;
use super::qp::{Common, Sent};
use super::queue::RecvWork;
use crate::frame::{Arrival, COPY_BYTES_MAX, Outgoing, Payload};
use pollux_verbs::work::MESSAGE_BYTES_MAX;
use pollux_verbs::{
    Access, AsyncEvent, Completion, CompletionKind, CompletionStatus, QpType, RKey, With,
};
use pollux_wire::packet::{
    Aeth, AtomicAckEth, AtomicEth, Credits, Extended, NakCode, Operation, Reth, RnrTimer, Syndrome,
};
use pollux_wire::psn::Psn;
use std::collections::VecDeque;

#[derive(Debug, Default)]
pub(crate) struct Responder {
    expected: Psn,
    /// Messages completed.
    msn: Psn,
    within: Within,
    /// The gap before `expected` has been told of.
    gap_told: bool,
    answers: VecDeque<Answer>,
    /// Reads and atomics that were executed lately, for duplicates.
    executed: VecDeque<Executed>,
    /// A peer asked for what ends the queue pair.
    failed: bool,
}

/// Answers that may wait; beyond that, requests are as lost on the way.
const ANSWERS_MAX: usize = 64;

/// The message in progress.
#[derive(Debug, Default)]
enum Within {
    #[default]
    Nothing,
    /// A message into a receive.
    Send { work: RecvWork, bytes: usize },
    /// A message into memory.
    Write { reth: Reth, bytes: u64 },
}

/// Something to be sent back.
#[derive(Debug)]
enum Answer {
    /// An acknowledgement of any kind.
    Ack { psn: Psn, syndrome: Syndrome },
    /// The answer to a read.
    Read(ReadAnswer),
    /// The answer to an atomic.
    Atomic { psn: Psn, original: u64, turn: Turn },
}

/// Whether something is done for the first time: only that takes one of the peer's resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    First,
    Again,
}

/// The answer to a read, of which `packet` packets were sent.
#[derive(Debug)]
struct ReadAnswer {
    psn: Psn,
    reth: Reth,
    packet: u32,
    packets: u32,
    turn: Turn,
}

/// A read or an atomic that may be asked for again.
#[derive(Clone, Copy, Debug)]
struct Executed {
    psn: Psn,
    packets: u32,
    /// What an atomic found.
    original: Option<u64>,
}

/// Why a request is not carried out.
enum Refusal {
    /// It is answered so, and the queue pair fails, which only an event can tell. Where nobody
    /// waits for an answer, the message is dropped.
    Fatal(NakCode),
    /// The same, but a receive has told it already.
    Told(NakCode),
    /// There is no receive.
    NotReady,
    /// Its sender took back what it lent: it is as lost on the way.
    Revoked,
}

impl Responder {
    pub(crate) fn new(expected: Psn) -> Self {
        Self { expected, ..Self::default() }
    }

    /// Whether this is the next number, and begins a message.
    #[inline(always)]
    pub(crate) fn expects(&self, psn: Psn) -> bool {
        psn == self.expected && matches!(self.within, Within::Nothing) && !self.failed
    }

    /// A message of one packet has been carried out.
    #[inline(always)]
    pub(crate) fn took_usual(&mut self, ack_req: bool) {
        self.expected = self.expected.plus(1);
        self.msn = self.msn.plus(1);
        self.gap_told = false;
        if ack_req {
            self.acknowledge();
        }
    }

    /// The only answer that waits, if it is a plain acknowledgement.
    #[inline(always)]
    pub(crate) fn usual_answer(&self, common: &Common) -> Option<(Psn, Aeth)> {
        match self.answers.front() {
            Some(Answer::Ack { psn, syndrome: Syndrome::Ack(_) }) if self.answers.len() == 1 => {
                let syndrome = Syndrome::Ack(common.credits());
                Some((*psn, Aeth { syndrome, msn: self.msn }))
            }
            _ => None,
        }
    }

    /// The only answer that waited has been sent.
    #[inline(always)]
    pub(crate) fn answered(&mut self) {
        self.answers.clear();
    }

    #[inline(always)]
    pub(crate) fn has_answer(&self) -> bool {
        !self.answers.is_empty()
    }

    /// A message in progress ends without its end.
    pub(crate) fn flush(&mut self, common: &mut Common, shared: &mut Shared) {
        if let Within::Send { work, .. } = std::mem::take(&mut self.within) {
            common.complete_recv(shared, &work, CompletionStatus::Flushed);
        }
        // What has been decided is still told: the peer has to learn why, and, where it was its own
        // request that ended all, what was done before.
        if !self.failed {
            self.answers.retain(|answer| matches!(answer, Answer::Ack { .. }));
        }
    }

    // ---------------------------------------------------------------- reliable

    /// A request has come.
    pub(crate) fn handle_reliable(
        &mut self,
        common: &mut Common,
        shared: &mut Shared,
        arrival: &Arrival<'_>,
    ) -> Result<(), Drop> {
        let psn = arrival.head.psn;
        if self.answers.len() >= ANSWERS_MAX {
            return Err(Drop::Sequence);
        }
        let ahead = psn.since(self.expected);
        if ahead < 0 {
            return self.handle_duplicate(common, shared, arrival);
        }
        if ahead > 0 {
            if !self.gap_told {
                self.gap_told = true;
                let code = NakCode::PSN_SEQUENCE_ERROR;
                self.answer(self.expected, Syndrome::Nak(code));
            }
            return Err(Drop::Sequence);
        }
        self.gap_told = false;
        let executed = self.execute(common, shared, arrival);
        match executed {
            Ok(()) => {
                if arrival.head.ack_req && !wants_data(arrival) {
                    self.acknowledge();
                }
                Ok(())
            }
            Err(Refusal::NotReady) => {
                let timer = common.attributes.min_rnr_timer.unwrap_or(RnrTimer(0));
                self.answer(psn, Syndrome::RnrNak(timer));
                // The rest of the burst is a gap that needs no second answer.
                self.gap_told = true;
                Err(Drop::NoRecv)
            }
            Err(Refusal::Revoked) => Err(Drop::Revoked),
            Err(Refusal::Told(code)) => {
                self.fail(psn, code);
                Err(Drop::Access)
            }
            Err(Refusal::Fatal(code)) => {
                shared.events.push_back(match code {
                    NakCode::REMOTE_ACCESS_ERROR => AsyncEvent::QpAccessError(common.handle),
                    _ => AsyncEvent::QpRequestError(common.handle),
                });
                self.fail(psn, code);
                Err(Drop::Access)
            }
        }
    }

    fn fail(&mut self, psn: Psn, code: NakCode) {
        self.answer(psn, Syndrome::Nak(code));
        self.failed = true;
    }

    /// A request has come once more: it is answered, and nothing is done twice (IBA 9.7.5.1.5).
    fn handle_duplicate(
        &mut self,
        common: &mut Common,
        shared: &mut Shared,
        arrival: &Arrival<'_>,
    ) -> Result<(), Drop> {
        let psn = arrival.head.psn;
        let known = self.executed.iter().find(|e| !psn.is_before(e.psn) && psn.is_before(e.end()));
        let known = known.copied();
        match arrival.extended {
            Extended::Reth(reth) if wants_data(arrival) => {
                let known = known.ok_or(Drop::Sequence)?;
                let packets = common.packets(reth.dma_len.into());
                if known.end().is_before(psn.plus(packets)) {
                    return Err(Drop::Sequence);
                }
                if !common.allows(Access::REMOTE_READ) {
                    return Err(Drop::Access);
                }
                let answered = self.answer_read(common, shared, psn, &reth, Turn::Again);
                answered.map_err(|_| Drop::Access)
            }
            Extended::AtomicEth(_) => {
                let original = known.and_then(|known| known.original).ok_or(Drop::Sequence)?;
                self.answers.push_back(Answer::Atomic { psn, original, turn: Turn::Again });
                Ok(())
            }
            _ => {
                self.acknowledge();
                Err(Drop::Sequence)
            }
        }
    }

    /// Everything before `expected` is acknowledged, once more or for the first time.
    fn acknowledge(&mut self) {
        let psn = self.expected.minus(1);
        self.answer(psn, Syndrome::Ack(Credits::UNLIMITED));
    }

    /// Queues an acknowledgement, in place of a positive one that did not leave yet.
    fn answer(&mut self, psn: Psn, syndrome: Syndrome) {
        if let Some(Answer::Ack { syndrome: Syndrome::Ack(_), .. }) = self.answers.back() {
            self.answers.pop_back();
        }
        self.answers.push_back(Answer::Ack { psn, syndrome });
    }

    /// Whether the queue pair has to fail for what a peer asked.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed
    }

    // ---------------------------------------------------------------- unreliable

    /// A request has come that nobody waits for an answer to (IBA 9.8.3).
    pub(crate) fn handle_unreliable(
        &mut self,
        common: &mut Common,
        shared: &mut Shared,
        arrival: &Arrival<'_>,
    ) -> Result<(), Drop> {
        let psn = arrival.head.psn;
        // Whatever begins a message is taken, and ends the one before it that has no end.
        if psn != self.expected || arrival.head.opcode.operation().begins() {
            self.abandon(common, shared);
        }
        self.expected = psn;
        let executed = self.execute(common, shared, arrival);
        if executed.is_err() {
            self.abandon(common, shared);
            self.expected = psn.plus(arrival.head.packets);
            // A receive that ends badly ends its queue pair on any service (IBA 10.10.3.2).
            self.failed = matches!(executed, Err(Refusal::Told(_)));
        }
        executed.map_err(|refusal| match refusal {
            Refusal::NotReady => Drop::NoRecv,
            Refusal::Revoked => Drop::Revoked,
            Refusal::Fatal(NakCode::REMOTE_ACCESS_ERROR) => Drop::Access,
            Refusal::Fatal(_) | Refusal::Told(_) => Drop::Sequence,
        })
    }

    /// The message in progress is lost; its receive waits for the next.
    fn abandon(&mut self, common: &mut Common, shared: &mut Shared) {
        if let Within::Send { work, .. } = std::mem::take(&mut self.within) {
            common.give_back_recv(shared, work);
        }
    }

    // ---------------------------------------------------------------- both

    /// Carries out the expected request, or its next part.
    fn execute(
        &mut self,
        common: &mut Common,
        shared: &mut Shared,
        arrival: &Arrival<'_>,
    ) -> Result<(), Refusal> {
        let operation = arrival.head.opcode.operation();
        let bytes = arrival.payload.bytes();
        let fits = match arrival.head.whole {
            false => operation.payload().allows(bytes, common.mtu()),
            // Packets of another path MTU would be another number, and not fit (IBA 9.7.4.1.6).
            true => wants_data(arrival) || arrival.head.packets == common.packets(bytes as u64),
        };
        let in_order = match &self.within {
            Within::Nothing => operation.begins(),
            Within::Send { .. } => operation.is_send() && !operation.begins(),
            Within::Write { .. } => operation.is_write() && !operation.begins(),
        };
        if !fits || !in_order {
            return Err(Refusal::Fatal(NakCode::INVALID_REQUEST));
        }
        match arrival.extended {
            Extended::Reth(reth) if operation == Operation::READ_REQUEST => {
                self.execute_read(common, shared, arrival.head.psn, &reth)
            }
            Extended::AtomicEth(atomic) => self.execute_atomic(common, shared, arrival, &atomic),
            _ if operation.is_send() => self.execute_send(common, shared, arrival),
            _ => self.execute_write(common, shared, arrival),
        }
    }
}

impl Answer {
    const fn takes_resource(&self) -> bool {
        matches!(
            self,
            Self::Read(ReadAnswer { turn: Turn::First, .. })
                | Self::Atomic { turn: Turn::First, .. }
        )
    }
}

impl Executed {
    const fn end(&self) -> Psn {
        self.psn.plus(self.packets)
    }
}

/// Whether the answer to a request is more than an acknowledgement.
fn wants_data(arrival: &Arrival<'_>) -> bool {
    matches!(
        arrival.head.opcode.operation(),
        Operation::READ_REQUEST | Operation::COMPARE_SWAP | Operation::FETCH_ADD
    )
}
