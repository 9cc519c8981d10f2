//! IPv4 options of packets in transit (RFC 791 3.1, RFC 7126).
//!
//! A router checks their format, and answers a malformed option with a parameter problem (RFC 1812
//! 4.3.3.5). Packets with a source route are dropped (RFC 7126 4.3 and 4.4). Other options pass
//! unchanged: this router records no route and no timestamp, which RFC 7126 4.5 and 4.6 permit.

use super::ForwardError;
use crate::port::TransitError;
use crate::reason::ForwardDrop;
use pollux_wire::ip::ipv4::{Ipv4Header, Ipv4OptionKind};

/// Checks the options of a packet.
#[cold]
pub(super) fn check(packet: &[u8]) -> Result<(), ForwardError> {
    let Ok((header, rest)) = Ipv4Header::read(packet) else { return Ok(()) };
    let options = rest.get(..header.header_len().saturating_sub(Ipv4Header::LEN));
    let bad = |at: usize| {
        let pointer = u8::try_from(Ipv4Header::LEN + at).unwrap_or(u8::MAX);
        ForwardError::Reject(TransitError::BadOption(pointer))
    };
    let mut seen = Seen::default();
    let (mut left, mut at) = (options.unwrap_or_default(), 0);
    while let Some(&kind) = left.first() {
        let kind = Ipv4OptionKind(kind);
        let len = match kind {
            Ipv4OptionKind::END => break,
            Ipv4OptionKind::NO_OPERATION => 1,
            _ => match left.get(1).map(|len| usize::from(*len)) {
                Some(len) if len >= 2 && len <= left.len() => len,
                _ => return Err(bad(at)),
            },
        };
        let (option, others) = left.split_at(len);
        seen.check(kind, option).map_err(|wrong| bad(at + wrong))?;
        (left, at) = (others, at + len);
    }
    match seen.has_source_route {
        true => Err(ForwardError::Drop(ForwardDrop::SourceRoute)),
        false => Ok(()),
    }
}

/// The options seen so far of which a packet may have only one.
#[derive(Default)]
struct Seen {
    has_source_route: bool,
    has_record_route: bool,
    has_timestamp: bool,
}

impl Seen {
    /// Checks an option. An error is the offset of the wrong byte in the option.
    fn check(&mut self, kind: Ipv4OptionKind, option: &[u8]) -> Result<(), usize> {
        // Whether the option is repeated, its minimum length, its minimum pointer, and the length
        // of an entry (0 if it does not matter).
        let (is_again, len_min, pointer_min, entry) = match kind {
            Ipv4OptionKind::LOOSE_SOURCE_ROUTE | Ipv4OptionKind::STRICT_SOURCE_ROUTE => {
                (std::mem::replace(&mut self.has_source_route, true), 3, 4, 0)
            }
            Ipv4OptionKind::RECORD_ROUTE => {
                (std::mem::replace(&mut self.has_record_route, true), 3, 4, 4)
            }
            Ipv4OptionKind::TIMESTAMP => {
                let has_address = option.get(3).is_some_and(|flags| matches!(flags & 15, 1 | 3));
                let entry = if has_address { 8 } else { 4 };
                (std::mem::replace(&mut self.has_timestamp, true), 4, 5, entry)
            }
            Ipv4OptionKind::ROUTER_ALERT => return if option.len() < 4 { Err(1) } else { Ok(()) },
            _ => return Ok(()),
        };
        let pointer = option.get(2).map_or(0, |pointer| usize::from(*pointer));
        if is_again {
            return Err(0);
        }
        if option.len() < len_min {
            return Err(1);
        }
        // A pointer beyond the end means that the option is full.
        let is_split = pointer <= option.len() && pointer + entry > option.len() + 1;
        if pointer < pointer_min || entry > 0 && is_split {
            return Err(2);
        }
        // A full timestamp option counts the routers that found no space, in 4 bits. At 15 the
        // counter would overflow.
        let counts = kind == Ipv4OptionKind::TIMESTAMP && pointer > option.len();
        let is_over = option.get(3).is_some_and(|flags| flags >> 4 == 15 && flags & 15 != 3);
        if counts && is_over { Err(3) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result for a packet with these options.
    fn verdict(options: &[u8]) -> Result<(), ForwardError> {
        let mut packet = vec![0; 20];
        packet[0] = 0x45 + (options.len() / 4) as u8;
        packet.extend(options);
        check(&packet)
    }

    #[test]
    fn options_in_form_pass_whatever_they_are() {
        for options in [
            &[][..],
            &[1, 1, 1, 0],
            &[0, 99, 99, 99],
            &[7, 7, 4, 0, 0, 0, 0, 0],
            &[7, 7, 8, 1, 2, 3, 4, 0],
            &[68, 8, 5, 0, 0, 0, 0, 0],
            &[68, 12, 5, 1, 0, 0, 0, 0, 0, 0, 0, 0],
            &[68, 8, 9, 0xe0, 0, 0, 0, 0],
            &[148, 4, 0, 0],
            &[222, 2, 94, 2],
        ] {
            assert_eq!(verdict(options), Ok(()), "{options:?}");
        }
    }

    #[test]
    fn the_wrong_byte_of_a_malformed_option_is_reported() {
        for (options, at) in [
            (&[94, 0, 0, 0][..], 0),
            (&[94, 1, 0, 0], 0),
            (&[1, 94, 4, 0], 1),
            (&[1, 1, 1, 94], 3),
            (&[7, 2, 0, 0], 1),
            (&[7, 7, 3, 0, 0, 0, 0, 0], 2),
            (&[7, 7, 5, 0, 0, 0, 0, 0], 2),
            (&[7, 3, 4, 7, 3, 4, 0, 0], 3),
            (&[68, 3, 5, 0], 1),
            (&[68, 8, 4, 0, 0, 0, 0, 0], 2),
            (&[68, 8, 5, 1, 0, 0, 0, 0], 2),
            (&[68, 8, 9, 0xf0, 0, 0, 0, 0], 3),
            (&[131, 2, 0, 0], 1),
            (&[131, 3, 3, 0], 2),
            (&[131, 3, 4, 137, 3, 4, 0, 0], 3),
            (&[148, 3, 0, 0], 1),
        ] {
            let expected = Err(ForwardError::Reject(TransitError::BadOption(20 + at)));
            assert_eq!(verdict(options), expected, "{options:?}");
        }
    }

    #[test]
    fn a_source_route_is_dropped() {
        for kind in [131, 137] {
            let expected = Err(ForwardError::Drop(ForwardDrop::SourceRoute));
            assert_eq!(verdict(&[kind, 7, 4, 10, 0, 0, 1, 0]), expected);
        }
    }

    #[test]
    fn any_options_are_checked_without_a_panic() {
        for kind in [0, 1, 7, 68, 94, 131, 137, 148] {
            for len in 0..=12 {
                for pointer in [0, 4, 5, 8, 9, 255] {
                    let _verdict = verdict(&[kind, len, pointer, 0xf1, 1, 0, 0, 0]);
                    let _verdict = verdict(&[1, kind, len, pointer]);
                }
            }
        }
    }
}
