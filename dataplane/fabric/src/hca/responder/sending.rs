//! What the responder sends: answers in the order of the requests (IBA 9.7.5).

use super::*;

impl Responder {
    /// The next answer, or the next packet of it.
    pub(crate) fn poll_transmit(
        &mut self,
        common: &Common,
        shared: &Shared,
        shortcut: bool,
    ) -> Option<Frame> {
        let aeth = |syndrome| Aeth { syndrome, msn: self.msn };
        let good = aeth(Syndrome::Ack(common.credits()));
        let port = &shared.port;
        let (psn, operation, extended) = match self.answers.front_mut()? {
            Answer::Ack { psn, syndrome: Syndrome::Ack(_) } => {
                (*psn, Operation::ACKNOWLEDGE, Extended::Aeth(good))
            }
            Answer::Ack { psn, syndrome } => {
                (*psn, Operation::ACKNOWLEDGE, Extended::Aeth(aeth(*syndrome)))
            }
            Answer::Atomic { psn, original, .. } => {
                let original = AtomicAckEth { original: *original };
                (*psn, Operation::ATOMIC_ACKNOWLEDGE, Extended::AethAtomicAckEth(good, original))
            }
            Answer::Read { psn, piece, octets, packet, packets, .. } => {
                let whole = shortcut && *packet == 0;
                let (operation, has_aeth) = read_response(whole, *packet, *packets);
                let extended = if has_aeth { Extended::Aeth(good) } else { Extended::None };
                let headers = common.headers(port, operation, psn.plus(*packet), extended);
                let pieces = piece.as_slice();
                let (frame, is_last) = if whole {
                    (message(headers, *packets, Payload::of(pieces, *octets)), true)
                } else {
                    let at = *packet as usize * common.mtu();
                    let part = (*octets - at).min(common.mtu());
                    *packet += 1;
                    (packet_of(&headers, part, pieces, at), packet == packets)
                };
                if is_last {
                    self.answers.pop_front();
                }
                return Some(frame);
            }
        };
        self.answers.pop_front();
        let headers = common.headers(port, operation, psn, extended);
        if shortcut {
            return Some(message(headers, 1, Payload::empty()));
        }
        Some(packet(&headers, 0, |_| {}))
    }
}

fn packet_of(headers: &Headers, octets: usize, pieces: &[Piece], at: usize) -> Frame {
    packet(headers, octets, |room| gather(pieces, at, room))
}

/// Which operation the packet of an answer to a read is, and whether it has an AETH.
fn read_response(whole: bool, packet: u32, packets: u32) -> (Operation, bool) {
    if whole || packets == 1 {
        (Operation::READ_RESPONSE_ONLY, true)
    } else if packet == 0 {
        (Operation::READ_RESPONSE_FIRST, true)
    } else if packet + 1 == packets {
        (Operation::READ_RESPONSE_LAST, true)
    } else {
        (Operation::READ_RESPONSE_MIDDLE, false)
    }
}
