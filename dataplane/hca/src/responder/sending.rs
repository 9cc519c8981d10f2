//! Transmission of answers, in the order of the requests (IBA 9.7.5).

use super::*;
use crate::lease::LeasedMemory;
use crate::message_bypass::Carriage;
use crate::sink::FrameSink;

impl Responder {
    /// Sends the next answer, or the next packet of a read response.
    #[inline]
    pub(crate) fn transmit(
        &mut self,
        common: &Common,
        shared: &mut Shared,
        bypass: bool,
        outlet: &mut Outlet<'_, impl FrameSink>,
    ) -> Sent {
        let aeth = |syndrome| Aeth { syndrome, msn: self.msn };
        let good = |common: &Common| aeth(Syndrome::Ack(common.credits()));
        let Some(answer) = self.answers.front_mut() else { return Sent::All };
        let (psn, operation, extended) = match answer {
            Answer::Ack { psn, syndrome: Syndrome::Ack(_) } => {
                (*psn, Operation::ACKNOWLEDGE, Extended::Aeth(good(common)))
            }
            Answer::Ack { psn, syndrome } => {
                (*psn, Operation::ACKNOWLEDGE, Extended::Aeth(aeth(*syndrome)))
            }
            Answer::Atomic { psn, original, .. } => {
                let original = AtomicAckEth { original: *original };
                let extended = Extended::AethAtomicAckEth(good(common), original);
                (*psn, Operation::ATOMIC_ACKNOWLEDGE, extended)
            }
            Answer::Read(read) => {
                let good = good(common);
                return match read.transmit(common, shared, good, bypass, outlet) {
                    Some(sent) => {
                        if read.packet == read.packets {
                            self.answers.pop_front();
                        }
                        sent
                    }
                    None => {
                        let psn = read.psn.plus(read.packet);
                        self.answers.clear();
                        shared.events.push_back(AsyncEvent::QpAccessError(common.handle));
                        self.fail(psn, NakCode::REMOTE_ACCESS_ERROR);
                        Sent::More
                    }
                };
            }
        };
        let (head, grh) = common.head(&shared.port, operation, psn);
        let payload = Payload::NONE;
        if !outlet.send(&FrameToSend { head, grh, extended, payload, as_packet: !bypass }) {
            return Sent::Stalled;
        }
        self.answers.pop_front();
        Sent::More
    }
}

impl ReadAnswer {
    /// Sends the next packet of the response, or all of it in one message. `None` if the peer may
    /// no longer read the memory, as after a deregistration since the request.
    fn transmit(
        &mut self,
        common: &Common,
        shared: &Shared,
        good: Aeth,
        bypass: bool,
        outlet: &mut Outlet<'_, impl FrameSink>,
    ) -> Option<Sent> {
        let Reth { va, rkey, dma_len } = self.reth;
        let (pd, need) = (common.init.pd, Access::REMOTE_READ);
        let port = &shared.port;
        let psn = self.psn.plus(self.packet);
        let sge = shared.memory.remote(pd, RKey(rkey), va, dma_len, need).ok()?;
        let sges = [sge];
        let pieces = shared.memory.pieces(&sges);
        let bytes = dma_len as usize;
        let leases = &shared.leases;
        let reaches = || {
            let (head, _) = common.head(port, Operation::READ_RESPONSE_ONLY, psn);
            !is_window(RKey(rkey)) && outlet.can_lease(&head, &pieces, leases)
        };
        let carriage = match bypass && self.packet == 0 {
            true => Carriage::of(bytes, reaches),
            false => Carriage::Segmented,
        };
        let unsegmented = carriage != Carriage::Segmented;
        let (operation, has_aeth) = read_response(unsegmented, self.packet, self.packets);
        let extended = if has_aeth { Extended::Aeth(good) } else { Extended::None };
        let (mut head, grh) = common.head(port, operation, psn);
        let skip = self.packet as usize * common.mtu();
        head.unsegmented = unsegmented;
        let payload = match carriage {
            Carriage::Segmented => {
                Payload::Copied { pieces, skip, bytes: (bytes - skip).min(common.mtu()) }
            }
            Carriage::Carried => Payload::Copied { pieces, skip, bytes },
            Carriage::Leased => {
                head.leased = true;
                Payload::Leased { pieces, qp_lease: leases.qp_lease(common.qpn) }
            }
        };
        let sent = if unsegmented { self.packets } else { 1 };
        head.packets = sent;
        if !outlet.send(&FrameToSend { head, grh, extended, payload, as_packet: !bypass }) {
            return Some(Sent::Stalled);
        }
        self.packet += sent;
        Some(Sent::More)
    }
}

/// The operation of a read response packet, and whether it has an AETH.
fn read_response(unsegmented: bool, packet: u32, packets: u32) -> (Operation, bool) {
    if unsegmented || packets == 1 {
        (Operation::READ_RESPONSE_ONLY, true)
    } else if packet == 0 {
        (Operation::READ_RESPONSE_FIRST, true)
    } else if packet + 1 == packets {
        (Operation::READ_RESPONSE_LAST, true)
    } else {
        (Operation::READ_RESPONSE_MIDDLE, false)
    }
}
