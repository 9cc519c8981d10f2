//! Finds the interface of a MAD at a port with several interfaces.
//!
//! - An SA response is for the interface whose number is in the upper half of the transaction ID.
//! - A notice is for all interfaces; the first acknowledges it.
//! - A REQ is for the interface of the partition in the REQ; other CM messages are for the
//!   interface of the partition in which they were received.
//! - The first interface gets all other MADs, and refuses them.
//!
//! The SA has the port as one subscriber, so a subscription ends with the last interface that has
//! it.

use pollux_control::mad::Envelope;
use pollux_wire::keys::PKey;
use pollux_wire::mad::cm::CmMessage;
use pollux_wire::mad::notice::TrapNumber;
use pollux_wire::mad::sa::{InformInfo, SaMad};
use pollux_wire::mad::{Attribute, MadHeader, Method, MgmtClass};
use std::collections::{BTreeMap, BTreeSet};

/// The interfaces that have subscribed to each notice.
#[derive(Default)]
pub(super) struct Subscribers(BTreeMap<TrapNumber, BTreeSet<usize>>);

impl Subscribers {
    /// The response to an interface that ends a subscription while other interfaces have it. `None`
    /// for all other MADs, which are sent to the SA.
    pub(super) fn answer(&mut self, number: usize, envelope: &Envelope) -> Option<Envelope> {
        let mut mad = SaMad::parse(&envelope.mad);
        if mad.header.attribute_id != InformInfo::ID || mad.header.method != Method::SET {
            return None;
        }
        let (_, info) = mad.record::<InformInfo>().ok()?;
        let subscribers = self.0.entry(info.trap_number).or_default();
        if info.subscribe != 0 {
            subscribers.insert(number);
            return None;
        }
        subscribers.remove(&number);
        mad.header.method = mad.header.method.response();
        (!subscribers.is_empty()).then(|| Envelope { mad: mad.emit(), ..*envelope })
    }
}

/// The number of the interface of a MAD; `None` if it is for all.
pub(super) fn addressee(envelope: &Envelope, p_keys: &[PKey]) -> Option<usize> {
    let in_partition =
        |p_key: PKey| p_keys.iter().position(|own| own.partition() == p_key.partition());
    let (header, _) = MadHeader::read(&envelope.mad).expect("a datagram has a header");
    let number = match header.mgmt_class {
        MgmtClass::SUBN_ADM if header.method == Method::REPORT => return None,
        MgmtClass::SUBN_ADM => interface_of(header.transaction_id).filter(|it| *it < p_keys.len()),
        MgmtClass::COMM_MGT => match CmMessage::parse_mad(&envelope.mad) {
            Ok((_, CmMessage::Req(req))) => in_partition(req.p_key),
            _ => in_partition(envelope.peer.p_key),
        },
        _ => None,
    };
    Some(number.unwrap_or(0))
}

/// Puts the number of an interface into the upper half of a transaction ID, which clients leave 0.
pub(super) fn set_interface(number: usize, transaction_id: u64) -> u64 {
    (number as u64) << 32 | transaction_id & u64::from(u32::MAX)
}

fn interface_of(transaction_id: u64) -> Option<usize> {
    usize::try_from(transaction_id >> 32).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_control::mad::MadAddress;
    use pollux_wire::address::Lid;
    use pollux_wire::mad::cm::{Req, Rtu};
    use pollux_wire::mad::{AttributeId, MAD_LEN};

    const P_KEYS: [PKey; 3] = [PKey::DEFAULT, PKey(0x8001), PKey(0x8002)];

    fn from(p_key: u16, mad: [u8; MAD_LEN]) -> Option<usize> {
        addressee(&Envelope { peer: MadAddress::gsi(Lid(1), 0, PKey(p_key)), mad }, &P_KEYS)
    }

    fn datagram(class: MgmtClass, method: Method, transaction_id: u64) -> [u8; MAD_LEN] {
        let mut mad = [0; MAD_LEN];
        let header = MadHeader::new(class, method, transaction_id, AttributeId(0x38));
        mad[..MadHeader::LEN].copy_from_slice(&header.emit());
        mad
    }

    #[test]
    fn answers_are_for_whoever_asked_and_notices_for_all() {
        let answer = |id| from(0xffff, datagram(MgmtClass::SUBN_ADM, Method::GET_RESP, id));
        for number in 0..3 {
            let id = set_interface(number, 0x1234_5678_9abc_def0);
            assert_eq!((answer(id), id as u32), (Some(number), 0x9abc_def0));
        }
        for nobodys in [7, set_interface(3, 7), u64::MAX] {
            assert_eq!(answer(nobodys), Some(0));
        }
        let notice = datagram(MgmtClass::SUBN_ADM, Method::REPORT, set_interface(1, 7));
        assert_eq!(from(0xffff, notice), None);
        assert_eq!(from(0x8001, datagram(MgmtClass::PERF, Method::GET, 7)), Some(0));
    }

    #[test]
    fn a_subscription_ends_with_the_last_interface_that_has_it() {
        let mut subscribers = Subscribers::default();
        let (created, deleted) =
            (TrapNumber::MULTICAST_GROUP_CREATED, TrapNumber::MULTICAST_GROUP_DELETED);
        let mut ask = |number, trap_number, subscribe| {
            let info = InformInfo { trap_number, subscribe, ..InformInfo::default() };
            let mad = SaMad::new(Method::SET, 7, 0, info).emit();
            let peer = MadAddress::gsi(Lid(1), 0, PKey::DEFAULT);
            let answer = subscribers.answer(number, &Envelope { peer, mad });
            answer.map(|answer| {
                let mad = SaMad::parse(&answer.mad);
                let (_, info) = mad.record::<InformInfo>().unwrap();
                (mad.header.method, mad.header.transaction_id, info.trap_number, info.subscribe)
            })
        };
        for number in [0, 2] {
            assert_eq!(ask(number, created, 1), None, "the administrator is asked each time");
        }
        assert_eq!(ask(2, deleted, 1), None);
        assert_eq!(ask(0, created, 0), Some((Method::GET_RESP, 7, created, 0)));
        assert_eq!(ask(0, created, 0), Some((Method::GET_RESP, 7, created, 0)), "repeated");
        assert_eq!(ask(2, deleted, 0), None, "no other has that one");
        assert_eq!(ask(2, created, 0), None, "the last one leaves");
    }

    #[test]
    fn connections_are_made_in_the_partition_that_a_request_names() {
        let request = |p_key| CmMessage::Req(Req { p_key: PKey(p_key), ..Req::default() });
        assert_eq!(from(0xffff, request(0x8002).emit_mad(7)), Some(2));
        assert_eq!(from(0x8001, request(0x8009).emit_mad(7)), Some(0), "to be refused");
        let rtu = CmMessage::Rtu(Rtu::default()).emit_mad(set_interface(2, 7));
        assert_eq!(from(0x8001, rtu), Some(1));
        assert_eq!(from(0x0001, rtu), Some(1), "a limited member means the same partition");
        assert_eq!(from(0x8009, rtu), Some(0));
    }
}
