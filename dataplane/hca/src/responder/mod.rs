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
//! The order in which a request is checked, and the answer if the check fails:
//!
//! | check | clause | RC | UC |
//! |---|---|---|---|
//! | CRCs, port state, DLID, GRH, QPN: `Adapter::handle_arrival` | IBA 9.6.1.1 | drop | drop |
//! | transport, QP state, P_Key, path: `QueuePair::admit` | IBA 9.6.1 | drop | drop |
//! | PSN: ahead is a gap | IBA 9.7.4.1.2 | NAK PSN sequence error, once | new message |
//! | PSN: behind is a duplicate | IBA 9.7.5.1.5 | repeat the answer | new message |
//! | opcode order, length: `execute` | IBA 9.7.4.1.3, 9.7.4.1.6 | NAK invalid request | drop |
//! | access rights, resources: `execute_*` | IBA 9.7.4.1.4 | NAK invalid request | drop |
//! | R_Key and range | IBA 9.7.4.1.5 | NAK remote access error | drop |
//! | receive posted | IBA 9.7.5.2.8 | RNR NAK with the RNR timer | drop |
//! | copy into memory, completion | IBA 9.7.5.1 | ACK, coalesced | none |
//!
//! A duplicate is answered and not executed again: a read from the memory, an atomic from its
//! stored answer. Answers leave in the order of the requests, so they wait in a queue. ACK
//! coalescing: an ACK replaces the ACK before it that has not left.

mod execute;
mod fast_path;
mod sending;

use super::Shared;
use super::common::{Common, Sent};
use super::memory::is_window;
use super::outlet::Outlet;
use super::port::DropReason;
use super::queue::RecvWork;
use crate::frame::{Arrival, Outgoing, Payload};
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
    in_progress: InProgress,
    /// A NAK for the gap before `expected` has been queued.
    gap_told: bool,
    answers: VecDeque<Answer>,
    /// Reads and atomics that were executed lately, for duplicates.
    executed: VecDeque<Executed>,
    /// A request of the peer requires that the queue pair fails.
    failed: bool,
}

/// Answers that may wait; beyond that, requests are dropped as if lost.
const ANSWERS_MAX: usize = 64;

/// The message in progress.
#[derive(Debug, Default)]
enum InProgress {
    #[default]
    Nothing,
    /// A message into a receive.
    Send { work: RecvWork, bytes: usize },
    /// A message into memory.
    Write { reth: Reth, bytes: u64 },
}

/// A message back to the requester.
#[derive(Debug)]
enum Answer {
    /// An acknowledgement of any kind.
    Ack { psn: Psn, syndrome: Syndrome },
    /// The answer to a read.
    Read(ReadAnswer),
    /// The answer to an atomic.
    Atomic { psn: Psn, original: u64, repetition: Repetition },
}

/// Whether an answer is to a request or to its duplicate; only the first takes one of the
/// responder resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Repetition {
    Original,
    Duplicate,
}

/// The answer to a read, of which `packet` packets were sent.
#[derive(Debug)]
struct ReadAnswer {
    psn: Psn,
    reth: Reth,
    packet: u32,
    packets: u32,
    repetition: Repetition,
}

/// A read or an atomic that the peer may repeat.
#[derive(Clone, Copy, Debug)]
struct Executed {
    psn: Psn,
    packets: u32,
    /// The original value of an atomic.
    original: Option<u64>,
}

/// Why a request is not executed.
enum Refusal {
    /// It is answered with this NAK, and the queue pair fails with an event. On an unreliable
    /// connection the message is dropped.
    Fatal(NakCode),
    /// The same, but a receive has completed with the error.
    Told(NakCode),
    /// There is no receive.
    NotReady,
    /// Its sender has revoked the lease: the message counts as lost.
    Revoked,
}

impl Responder {
    pub(crate) fn new(expected: Psn) -> Self {
        Self { expected, ..Self::default() }
    }

    #[inline(always)]
    pub(crate) fn has_answer(&self) -> bool {
        !self.answers.is_empty()
    }

    /// Aborts the message in progress.
    pub(crate) fn flush(&mut self, common: &mut Common, shared: &mut Shared) {
        if let InProgress::Send { work, .. } = std::mem::take(&mut self.in_progress) {
            common.complete_recv(shared, &work, CompletionStatus::Flushed);
        }
        // Queued ACKs and NAKs are still sent: the peer has to learn the reason, and, if its own
        // request failed, what was executed before.
        if !self.failed {
            self.answers.retain(|answer| matches!(answer, Answer::Ack { .. }));
        }
    }

    // ---------------------------------------------------------------- reliable

    /// Handles a request.
    pub(crate) fn handle_reliable(
        &mut self,
        common: &mut Common,
        shared: &mut Shared,
        arrival: &Arrival<'_>,
    ) -> Result<(), DropReason> {
        let psn = arrival.head.psn;
        if self.answers.len() >= ANSWERS_MAX {
            return Err(DropReason::Sequence);
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
            return Err(DropReason::Sequence);
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
                // The rest of the burst is the same gap, and needs no second NAK.
                self.gap_told = true;
                Err(DropReason::NoRecv)
            }
            Err(Refusal::Revoked) => Err(DropReason::Revoked),
            Err(Refusal::Told(code)) => {
                self.fail(psn, code);
                Err(DropReason::Access)
            }
            Err(Refusal::Fatal(code)) => {
                shared.events.push_back(match code {
                    NakCode::REMOTE_ACCESS_ERROR => AsyncEvent::QpAccessError(common.handle),
                    _ => AsyncEvent::QpRequestError(common.handle),
                });
                self.fail(psn, code);
                Err(DropReason::Access)
            }
        }
    }

    fn fail(&mut self, psn: Psn, code: NakCode) {
        self.answer(psn, Syndrome::Nak(code));
        self.failed = true;
    }

    /// Handles a duplicate: it is answered, but not executed again (IBA 9.7.5.1.5).
    fn handle_duplicate(
        &mut self,
        common: &mut Common,
        shared: &mut Shared,
        arrival: &Arrival<'_>,
    ) -> Result<(), DropReason> {
        let psn = arrival.head.psn;
        let known = self.executed.iter().find(|e| !psn.is_before(e.psn) && psn.is_before(e.end()));
        let known = known.copied();
        match arrival.extended {
            Extended::Reth(reth) if wants_data(arrival) => {
                let known = known.ok_or(DropReason::Sequence)?;
                let packets = common.packets(reth.dma_len.into());
                if known.end().is_before(psn.plus(packets)) {
                    return Err(DropReason::Sequence);
                }
                if !common.allows(Access::REMOTE_READ) {
                    return Err(DropReason::Access);
                }
                let answered = self.answer_read(common, shared, psn, &reth, Repetition::Duplicate);
                answered.map_err(|_| DropReason::Access)
            }
            Extended::AtomicEth(_) => {
                let original =
                    known.and_then(|known| known.original).ok_or(DropReason::Sequence)?;
                self.answers.push_back(Answer::Atomic {
                    psn,
                    original,
                    repetition: Repetition::Duplicate,
                });
                Ok(())
            }
            _ => {
                self.acknowledge();
                Err(DropReason::Sequence)
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

    /// Whether a request of the peer requires that the queue pair fails.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed
    }

    // ---------------------------------------------------------------- unreliable

    /// Handles a request of an unreliable connection (IBA 9.8.3).
    pub(crate) fn handle_unreliable(
        &mut self,
        common: &mut Common,
        shared: &mut Shared,
        arrival: &Arrival<'_>,
    ) -> Result<(), DropReason> {
        let psn = arrival.head.psn;
        // A first packet starts a message, and aborts one in progress.
        if psn != self.expected || arrival.head.opcode.operation().begins() {
            self.abandon(common, shared);
        }
        self.expected = psn;
        let executed = self.execute(common, shared, arrival);
        if executed.is_err() {
            self.abandon(common, shared);
            self.expected = psn.plus(arrival.head.packets);
            // A failed receive fails its queue pair on any service (IBA 10.10.3.2).
            self.failed = matches!(executed, Err(Refusal::Told(_)));
        }
        executed.map_err(|refusal| match refusal {
            Refusal::NotReady => DropReason::NoRecv,
            Refusal::Revoked => DropReason::Revoked,
            Refusal::Fatal(NakCode::REMOTE_ACCESS_ERROR) => DropReason::Access,
            Refusal::Fatal(_) | Refusal::Told(_) => DropReason::Sequence,
        })
    }

    /// The message in progress is lost; its receive waits for the next.
    fn abandon(&mut self, common: &mut Common, shared: &mut Shared) {
        if let InProgress::Send { work, .. } = std::mem::take(&mut self.in_progress) {
            common.give_back_recv(shared, work);
        }
    }

    // ---------------------------------------------------------------- both

    /// Executes the expected request, or its next part.
    fn execute(
        &mut self,
        common: &mut Common,
        shared: &mut Shared,
        arrival: &Arrival<'_>,
    ) -> Result<(), Refusal> {
        let operation = arrival.head.opcode.operation();
        let bytes = arrival.payload.bytes();
        let fits = match arrival.head.unsegmented {
            false => operation.payload().allows(bytes, common.mtu()),
            // Packets of another path MTU would be another number, and not fit (IBA 9.7.4.1.6).
            true => wants_data(arrival) || arrival.head.packets == common.packets(bytes as u64),
        };
        let in_order = match &self.in_progress {
            InProgress::Nothing => operation.begins(),
            InProgress::Send { .. } => operation.is_send() && !operation.begins(),
            InProgress::Write { .. } => operation.is_write() && !operation.begins(),
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
            Self::Read(ReadAnswer { repetition: Repetition::Original, .. })
                | Self::Atomic { repetition: Repetition::Original, .. }
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
