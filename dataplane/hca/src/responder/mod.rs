//! The receiving half of a connection: requests in, answers out (IBA 9.7.4, 9.7.5, 9.8.2).
//!
//! ```text
//!                        First                        Last, or in one: Only
//!   between messages ------------> within a message ------------------------> between messages
//!          ^                          | Middle: the same message goes on
//!          |                          |
//!          +--- reliable: NAK and error state if the order is wrong; unreliable: message dropped
//! ```
//!
//! A request passes the steps below in order. Before them, the adapter makes the checks whose
//! failure is a drop: `Adapter::handle_packet` checks CRCs, `Adapter::handle_arrival` port state,
//! DLID, GRH and QPN (IBA 9.6.1.1), and `QueuePair::admit` transport, state, P_Key and path (IBA
//! 9.6.1). The step names are those of Linux's `rxe_resp.c`.
//!
//! | step | clause | if it fails: RC | UC |
//! |---|---|---|---|
//! | `check_psn` | IBA 9.7.4.1.2 | ahead: NAK PSN sequence error, once | new message |
//! | | IBA 9.7.5.1.5 | behind: `duplicate_request` | new message |
//! | `check_op_seq` | IBA 9.7.4.1.3 | NAK invalid request | drop |
//! | `check_op_valid` | IBA 9.7.4.1.4 | NAK invalid request | drop |
//! | `check_resource`, for a read or an atomic | IBA 9.7.4.1.4 | NAK invalid request | drop |
//! | `take_recv`, if it needs a receive | IBA 9.7.5.2.8 | RNR NAK with the RNR timer | drop |
//! | `check_length`; of a message, `length_error` | IBA 9.7.4.1.6 | NAK invalid request | drop |
//! | `check_rkey` | IBA 9.7.4.1.5 | NAK remote access error | drop |
//! | `execute_*` | IBA 9.7.4 | drop, if the sender revoked its lease | drop |
//! | `complete` | IBA 9.7.5.1 | | |
//! | `acknowledge` | IBA 9.7.5.1 | ACK, coalesced | none |
//!
//! Two steps differ from Linux. The length of a packet is checked together with `check_op_seq`,
//! with the same outcome. An RDMA write with immediate takes its receive after `check_rkey`.
//!
//! The NAKs of the table are the syndromes of an AETH NAK, and the RNR NAK with its timer value.
//!
//! A duplicate request is answered without a second execution: a read from the current memory
//! contents, an atomic from its stored result. Answers are sent in the order of the requests, so
//! they wait in a queue. ACKs are coalesced: a new ACK replaces an unsent ACK at the end of the
//! queue.

mod execute;
mod fast_path;
mod sending;

use super::Shared;
use super::common::{Common, Sent};
use super::memory::is_window;
use super::outlet::Outlet;
use super::port::DropReason;
use super::queue::RecvWork;
use crate::frame::{Arrival, FrameToSend, Payload};
use pollux_verbs::work::MESSAGE_BYTES_MAX;
use pollux_verbs::{
    Access, AsyncEvent, Completion, CompletionKind, CompletionStatus, QpType, RKey, With,
};
use pollux_wire::packet::{
    Aeth, AtomicAckEth, AtomicEth, Credits, Extended, NakCode, Operation, Reth, RnrTimer, Syndrome,
};
use pollux_wire::psn::Psn;
use std::cmp::Ordering;
use std::collections::VecDeque;

#[derive(Debug, Default)]
pub(crate) struct Responder {
    expected: Psn,
    /// Messages completed.
    msn: Psn,
    in_progress: InProgress,
    /// A NAK or an RNR NAK for `expected` was queued, and `expected` has not arrived since.
    nak_sent: bool,
    answers: VecDeque<Answer>,
    /// The last executed reads and atomics, to answer duplicates.
    executed: VecDeque<Executed>,
    /// A request failed fatally: the queue pair must enter the error state.
    pub(crate) failed: bool,
}

/// The maximum number of queued answers. At this limit, further requests are dropped as if lost,
/// and counted as [`DropReason::Busy`].
const ANSWERS_MAX: usize = 64;

#[derive(Debug, Default)]
enum InProgress {
    #[default]
    Nothing,
    Send {
        work: RecvWork,
        bytes: usize,
    },
    Write {
        reth: Reth,
        bytes: u64,
    },
}

#[derive(Debug)]
enum Answer {
    /// An ACK, NAK or RNR NAK.
    Ack {
        psn: Psn,
        syndrome: Syndrome,
    },
    Read(ReadAnswer),
    Atomic {
        psn: Psn,
        original: u64,
        repetition: Repetition,
    },
}

/// Whether an answer is to a request or to a duplicate of it. Only the answer to the original takes
/// a responder resource.
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

/// The first check that failed.
enum Refusal {
    /// On RC, the responder sends this NAK, and the queue pair fails with an async event. On UC,
    /// the message is dropped.
    Fatal(NakCode),
    /// As `Fatal`, but without an event: a receive has completed with the error. On UC the queue
    /// pair fails, too.
    RecvFailed(NakCode),
    /// No receive is posted.
    NotReady,
    /// The sender has revoked the lease, so the message counts as lost.
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
        // Queued ACKs and NAKs are still sent. If a request of the peer failed (`failed`), the
        // answers to earlier requests are sent as well, before the NAK.
        if !self.failed {
            self.answers.retain(|answer| matches!(answer, Answer::Ack { .. }));
        }
    }

    // ---------------------------------------------------------------- reliable

    /// Handles a request of a reliable connection (IBA 9.7.4).
    pub(crate) fn handle_reliable(
        &mut self,
        common: &mut Common,
        shared: &mut Shared,
        arrival: &Arrival<'_>,
    ) -> Result<(), DropReason> {
        let psn = arrival.head.psn;
        if self.answers.len() >= ANSWERS_MAX {
            return Err(DropReason::Busy);
        }
        match self.check_psn(psn) {
            Ordering::Less => return self.duplicate_request(common, shared, arrival),
            Ordering::Greater => return Err(DropReason::Sequence),
            Ordering::Equal => {}
        }
        match self.check_and_execute(common, shared, arrival) {
            Ok(()) => {
                if arrival.head.ack_req && !is_read_or_atomic(arrival) {
                    self.acknowledge();
                }
                Ok(())
            }
            Err(Refusal::NotReady) => {
                let timer = common.attributes.min_rnr_timer.unwrap_or(RnrTimer(0));
                self.answer(psn, Syndrome::RnrNak(timer));
                // The packets that follow in the burst are part of the same gap and need no NAK of
                // their own.
                self.nak_sent = true;
                Err(DropReason::NoRecv)
            }
            Err(Refusal::Revoked) => Err(DropReason::Revoked),
            Err(Refusal::RecvFailed(code)) => {
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

    /// Compares a PSN with the expected one. Queues a NAK for the first packet after a gap.
    fn check_psn(&mut self, psn: Psn) -> Ordering {
        let order = psn.since(self.expected).cmp(&0);
        if order.is_eq() {
            self.nak_sent = false;
        } else if order.is_gt() && !self.nak_sent {
            self.nak_sent = true;
            self.answer(self.expected, Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR));
        }
        order
    }

    fn fail(&mut self, psn: Psn, code: NakCode) {
        self.answer(psn, Syndrome::Nak(code));
        self.failed = true;
    }

    /// Answers a duplicate without a second execution (IBA 9.7.5.1.5).
    fn duplicate_request(
        &mut self,
        common: &mut Common,
        shared: &mut Shared,
        arrival: &Arrival<'_>,
    ) -> Result<(), DropReason> {
        let psn = arrival.head.psn;
        let known = self.executed.iter().find(|e| !psn.is_before(e.psn) && psn.is_before(e.end()));
        let known = known.copied();
        match arrival.extended {
            Extended::Reth(reth) if is_read_or_atomic(arrival) => {
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

    /// Acknowledges everything before `expected`.
    fn acknowledge(&mut self) {
        let psn = self.expected.minus(1);
        self.answer(psn, Syndrome::Ack(Credits::UNLIMITED));
    }

    /// Queues an ACK or NAK. It replaces an unsent ACK at the end of the queue.
    fn answer(&mut self, psn: Psn, syndrome: Syndrome) {
        if let Some(Answer::Ack { syndrome: Syndrome::Ack(_), .. }) = self.answers.back() {
            self.answers.pop_back();
        }
        self.answers.push_back(Answer::Ack { psn, syndrome });
    }

    // ---------------------------------------------------------------- unreliable

    /// Handles a request of an unreliable connection (IBA 9.8.2).
    pub(crate) fn handle_unreliable(
        &mut self,
        common: &mut Common,
        shared: &mut Shared,
        arrival: &Arrival<'_>,
    ) -> Result<(), DropReason> {
        let psn = arrival.head.psn;
        // A First or Only packet begins a new message and aborts the message in progress.
        if psn != self.expected || arrival.head.opcode.operation().begins() {
            self.drop_message(common, shared);
        }
        self.expected = psn;
        let executed = self.check_and_execute(common, shared, arrival);
        if executed.is_err() {
            self.drop_message(common, shared);
            self.expected = psn.plus(arrival.head.packets);
            // A failed receive fails its queue pair on any service (IBA 10.10.3.2).
            self.failed = matches!(executed, Err(Refusal::RecvFailed(_)));
        }
        executed.map_err(|refusal| match refusal {
            Refusal::NotReady => DropReason::NoRecv,
            Refusal::Revoked => DropReason::Revoked,
            Refusal::Fatal(NakCode::REMOTE_ACCESS_ERROR) => DropReason::Access,
            Refusal::Fatal(_) | Refusal::RecvFailed(_) => DropReason::Sequence,
        })
    }

    /// Drops the message in progress. Its receive goes back to its queue.
    fn drop_message(&mut self, common: &mut Common, shared: &mut Shared) {
        if let InProgress::Send { work, .. } = std::mem::take(&mut self.in_progress) {
            common.give_back_recv(shared, work);
        }
    }

    // ---------------------------------------------------------------- both

    /// Runs the steps from `check_op_seq` on.
    fn check_and_execute(
        &mut self,
        common: &mut Common,
        shared: &mut Shared,
        arrival: &Arrival<'_>,
    ) -> Result<(), Refusal> {
        let operation = arrival.head.opcode.operation();
        if !self.check_op_seq(operation) || !check_length(common, arrival) {
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

    /// Whether the operation continues the message in progress, or begins one if there is none.
    fn check_op_seq(&self, operation: Operation) -> bool {
        match &self.in_progress {
            InProgress::Nothing => operation.begins(),
            InProgress::Send { .. } => operation.is_send() && !operation.begins(),
            InProgress::Write { .. } => operation.is_write() && !operation.begins(),
        }
    }
}

/// Whether a packet has a length that its opcode allows at this path MTU.
fn check_length(common: &Common, arrival: &Arrival<'_>) -> bool {
    let bytes = arrival.payload.bytes();
    match arrival.head.unsegmented {
        false => arrival.head.opcode.operation().payload().allows(bytes, common.mtu()),
        // If the sender uses another path MTU, its number of packets differs, and the message is
        // refused (IBA 9.7.4.1.6).
        true => is_read_or_atomic(arrival) || arrival.head.packets == common.packets(bytes as u64),
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

fn is_read_or_atomic(arrival: &Arrival<'_>) -> bool {
    matches!(
        arrival.head.opcode.operation(),
        Operation::READ_REQUEST | Operation::COMPARE_SWAP | Operation::FETCH_ADD
    )
}
