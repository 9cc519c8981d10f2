//! Messages between the management agents of a process and the server, over a separate connection.
//!
//! ```text
//! 0   kind 8 | SL or class 8 | path bits or class version 8 | whether there is a GRH 8
//! 4   agent 32
//! 8   LID 16 | P_Key index 16 | QPN 32
//! 16  GID index 8 | hop limit 8 | traffic class 8 | - 8 | flow label 32, or OUI 24
//! 24  GID 128, or methods 128
//! 40  the MAD
//! ```
//!
//! Integers are in native byte order: both ends are on one machine. The parser takes any bytes, and
//! returns `None` for those that are no message.

use crate::net::agent_mad::{AgentGrh, AgentMad};
use pollux_wire::address::{Gid, Lid, Qpn};
use pollux_wire::mad::MAD_LEN;

pub const BYTES: usize = HEAD + MAD_LEN;
const HEAD: usize = 40;

#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "nearly all are MADs")]
pub enum AgentMessage {
    /// Client: registers an agent.
    Register(AgentRegistration),
    /// Server, in answer to `Register`: the agent's number, which must be the upper half of the
    /// transaction IDs of its requests. `None` if another agent of the port has one of the methods,
    /// or the client has too many agents.
    Registered(Option<u32>),
    Unregister {
        agent: u32,
    },
    Mad(AgentMad),
}

/// The requests that an agent takes (IBA 13.4.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AgentRegistration {
    /// The class; 0 for an agent that takes no requests.
    pub class: u8,
    pub version: u8,
    /// The vendor, in vendor classes with an OUI.
    pub oui: [u8; 3],
    /// A bit for each method.
    pub methods: u128,
}

impl AgentMessage {
    pub fn emit(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
        match self {
            Self::Register(AgentRegistration { class, version, oui, methods }) => {
                put(0, &[1, *class, *version]);
                put(20, oui);
                put(24, &methods.to_ne_bytes());
            }
            Self::Registered(agent) => {
                put(0, &[2]);
                put(4, &agent.unwrap_or(0).to_ne_bytes());
            }
            Self::Unregister { agent } => {
                put(0, &[3]);
                put(4, &agent.to_ne_bytes());
            }
            Self::Mad(mad) => {
                put(0, &[4, mad.sl, mad.path_bits, u8::from(mad.grh.is_some())]);
                put(4, &mad.agent.to_ne_bytes());
                put(8, &mad.lid.0.to_ne_bytes());
                put(10, &mad.p_key_index.to_ne_bytes());
                put(12, &mad.qpn.0.to_ne_bytes());
                let grh = mad.grh.unwrap_or_default();
                put(16, &[grh.gid_index, grh.hop_limit, grh.traffic_class]);
                put(20, &grh.flow_label.to_ne_bytes());
                put(24, &grh.gid.0);
                put(HEAD, &mad.mad);
            }
        }
        bytes
    }

    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; BYTES] = bytes.try_into().ok()?;
        let word = |at: usize| u32::from_ne_bytes(part(bytes, at));
        let half = |at: usize| u16::from_ne_bytes(part(bytes, at));
        let [kind, first, second, has_grh] = part(bytes, 0);
        Some(match kind {
            1 => Self::Register(AgentRegistration {
                class: first,
                version: second,
                oui: part(bytes, 20),
                methods: u128::from_ne_bytes(part(bytes, 24)),
            }),
            2 => Self::Registered(Some(word(4)).filter(|agent| *agent != 0)),
            3 => Self::Unregister { agent: word(4) },
            4 => {
                let [gid_index, hop_limit, traffic_class] = part(bytes, 16);
                let (flow_label, gid) = (word(20), Gid(part(bytes, 24)));
                let grh = AgentGrh { gid_index, hop_limit, traffic_class, flow_label, gid };
                Self::Mad(AgentMad {
                    agent: word(4),
                    lid: Lid(half(8)),
                    qpn: Qpn(word(12)),
                    sl: first,
                    path_bits: second,
                    p_key_index: half(10),
                    grh: (has_grh != 0).then_some(grh),
                    mad: part(bytes, HEAD),
                })
            }
            _ => return None,
        })
    }
}

fn part<const N: usize>(bytes: &[u8; BYTES], at: usize) -> [u8; N] {
    std::array::from_fn(|index| bytes[at + index])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn messages_are_read_as_they_were_written() {
        let grh = AgentGrh {
            gid_index: 1,
            hop_limit: 64,
            traffic_class: 3,
            flow_label: 0xf_1234,
            gid: Gid([9; 16]),
        };
        let mad = AgentMad {
            agent: 7,
            lid: Lid(0xc001),
            qpn: Qpn(1),
            sl: 3,
            path_bits: 2,
            p_key_index: 5,
            grh: Some(grh),
            mad: std::array::from_fn(|index| index as u8),
        };
        let methods = 1 << 127 | 6;
        for message in [
            AgentMessage::Register(AgentRegistration {
                class: 0x32,
                version: 1,
                oui: [1, 2, 3],
                methods,
            }),
            AgentMessage::Registered(Some(9)),
            AgentMessage::Registered(None),
            AgentMessage::Unregister { agent: 9 },
            AgentMessage::Mad(mad),
            AgentMessage::Mad(AgentMad { grh: None, ..mad }),
        ] {
            assert_eq!(AgentMessage::parse(&message.emit()), Some(message));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = AgentMessage::parse(&bytes);
        }
    }
}
