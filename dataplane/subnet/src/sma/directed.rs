//! Directed routes of subnet management packets (IBA 14.2.2).
//!
//! The packet lists the output port of each node. Each node records its input port, and the answer
//! returns along the recorded ports. HP is the hop pointer, HC the hop count. The steps of a row
//! are in order, so HP has its new value after a change:
//!
//! ```text
//! out   requester   HP = 0 < HC      HP 1, out by InitialPath[1]; HC = 0: to its own agent
//!       switch      0 < HP < HC      ReturnPath[HP] := port in, HP + 1, out by InitialPath[HP]
//!       last node   HP = HC          ReturnPath[HP] := port in, HP + 1, to the agent
//! back  last node   HP = HC + 1      HP - 1, out by ReturnPath[HP]
//!       switch      1 < HP <= HC     HP - 1, out by ReturnPath[HP]
//!       requester   HP = 1           HP 0, to its manager
//! ```
//!
//! A route can have a part that is routed by LID before the directed part, and another behind it.
//! DrSLID is the LID of the requester, and DrDLID that of the responder. Each is permissive if its
//! part does not exist.
//!
//! A step reads and writes a few bytes in place: parsing and emitting the packet at each node would
//! take most of the time of a subnet bring-up.

use super::Mad;
use pollux_wire::address::Lid;
use pollux_wire::mad::smp::DirectedSmp;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectedPosition {
    /// The input port; `None` at the node that sends the packet.
    pub in_port: Option<u8>,
    pub is_switch: bool,
    pub num_ports: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The packet has arrived, and the agent of the node answers.
    Agent,
    /// The answer has arrived at the requester.
    Sender,
    Port(u8),
    /// The directed part is over. The packet is routed to this LID from here on.
    Lid(Lid),
    /// An invalid route. The caller counts it.
    Drop,
}

/// The direction bit (D), in the first byte of the status.
const RETURNING: u8 = 0x80;
/// Offsets of fields of [`DirectedSmp`].
const STATUS: usize = 4;
const HOP_POINTER: usize = 6;
const HOP_COUNT: usize = 7;
const DR_SLID: usize = 32;
const DR_DLID: usize = 34;
const INITIAL_PATH: usize = 128;
const RETURN_PATH: usize = 192;

/// Decides the next step of a packet, and updates it.
pub fn step(position: DirectedPosition, mad: &mut Mad) -> Step {
    if mad[HOP_COUNT] > DirectedSmp::HOPS_MAX {
        return Step::Drop;
    }
    if mad[STATUS] & RETURNING == 0 { step_out(position, mad) } else { step_back(position, mad) }
}

fn step_out(position: DirectedPosition, mad: &mut Mad) -> Step {
    let (pointer, count) = (mad[HOP_POINTER], mad[HOP_COUNT]);
    match position.in_port {
        None if pointer == 0 => {
            mad[HOP_POINTER] = 1;
            if count == 0 { Step::Agent } else { position.out(mad[INITIAL_PATH + 1]) }
        }
        Some(port) if 0 < pointer && pointer < count && position.is_switch => {
            mad[RETURN_PATH + usize::from(pointer)] = port;
            mad[HOP_POINTER] = pointer + 1;
            position.out(mad[INITIAL_PATH + usize::from(pointer) + 1])
        }
        in_port if pointer == count => {
            if let (Some(port), true) = (in_port, count > 0) {
                mad[RETURN_PATH + usize::from(pointer)] = port;
            }
            mad[HOP_POINTER] = count + 1;
            match lid(mad, DR_DLID) {
                Lid::PERMISSIVE => Step::Agent,
                lid if position.is_switch => Step::Lid(lid),
                _ => Step::Drop,
            }
        }
        _ if pointer == count + 1 => Step::Agent,
        _ => Step::Drop,
    }
}

fn step_back(position: DirectedPosition, mad: &mut Mad) -> Step {
    let (pointer, count) = (mad[HOP_POINTER], mad[HOP_COUNT]);
    let is_middle =
        1 < pointer && pointer <= count && position.is_switch && position.in_port.is_some();
    let is_first = pointer == count + 1 && count > 0;
    if is_first || is_middle {
        mad[HOP_POINTER] = pointer - 1;
        return position.out(mad[RETURN_PATH + usize::from(pointer) - 1]);
    }
    match pointer {
        0 => Step::Sender,
        1 => {
            mad[HOP_POINTER] = 0;
            match lid(mad, DR_SLID) {
                Lid::PERMISSIVE => Step::Sender,
                lid if position.is_switch => Step::Lid(lid),
                _ => Step::Drop,
            }
        }
        _ => Step::Drop,
    }
}

fn lid(mad: &Mad, at: usize) -> Lid {
    Lid(u16::from_be_bytes([mad[at], mad[at + 1]]))
}

impl DirectedPosition {
    /// Sends the packet from a port, if the node has it.
    fn out(self, port: u8) -> Step {
        if 0 < port && port <= self.num_ports { Step::Port(port) } else { Step::Drop }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_wire::mad::MadStatus;
    use proptest::prelude::*;

    fn step(position: DirectedPosition, smp: &mut DirectedSmp) -> Step {
        let mut mad = smp.emit();
        let step = super::step(position, &mut mad);
        *smp = DirectedSmp::parse(&mad);
        step
    }

    const SWITCH: DirectedPosition =
        DirectedPosition { in_port: Some(3), is_switch: true, num_ports: 8 };
    const ADAPTER: DirectedPosition =
        DirectedPosition { in_port: Some(1), is_switch: false, num_ports: 2 };

    fn start(position: DirectedPosition) -> DirectedPosition {
        DirectedPosition { in_port: None, ..position }
    }

    fn smp(pointer: u8, path: &[u8]) -> DirectedSmp {
        let mut smp = DirectedSmp {
            dr_slid: Lid::PERMISSIVE,
            dr_dlid: Lid::PERMISSIVE,
            ..DirectedSmp::default()
        };
        smp.set_hops(pointer, path.len() as u8);
        smp.initial_path[1..=path.len()].copy_from_slice(path);
        smp
    }

    #[test]
    fn a_packet_goes_out_and_its_answer_comes_back() {
        let mut smp = smp(0, &[2, 5]);
        assert_eq!(step(start(ADAPTER), &mut smp), Step::Port(2));
        assert_eq!(step(SWITCH, &mut smp), Step::Port(5));
        assert_eq!(step(ADAPTER, &mut smp), Step::Agent);
        assert_eq!((smp.hop_pointer(), &smp.return_path[..3]), (3, &[0, 3, 1][..]));
        smp.header.status = MadStatus::OK.returning();
        assert_eq!(step(start(ADAPTER), &mut smp), Step::Port(1));
        assert_eq!(step(DirectedPosition { in_port: Some(5), ..SWITCH }, &mut smp), Step::Port(3));
        assert_eq!(smp.hop_pointer(), 1);
        assert_eq!(step(DirectedPosition { in_port: Some(2), ..ADAPTER }, &mut smp), Step::Sender);
        assert_eq!(smp.hop_pointer(), 0);
    }

    #[test]
    fn a_packet_without_hops_is_for_the_node_itself() {
        let mut smp = smp(0, &[]);
        assert_eq!(step(start(ADAPTER), &mut smp), Step::Agent);
        assert_eq!(smp.hop_pointer(), 1);
        smp.header.status = MadStatus::OK.returning();
        assert_eq!(step(start(ADAPTER), &mut smp), Step::Sender);
    }

    #[test]
    fn adapters_do_not_forward_and_ports_must_be_there() {
        assert_eq!(step(ADAPTER, &mut smp(1, &[1, 1])), Step::Drop);
        assert_eq!(step(start(ADAPTER), &mut smp(0, &[3])), Step::Drop);
        assert_eq!(step(SWITCH, &mut smp(1, &[1, 0])), Step::Drop);
        assert_eq!(step(SWITCH, &mut smp(1, &[1, 9])), Step::Drop);
        assert_eq!(step(SWITCH, &mut smp(0, &[1, 1])), Step::Drop);
        assert_eq!(step(SWITCH, &mut smp(4, &[1, 1])), Step::Drop);
        let mut long = smp(1, &[1; 63]);
        long.set_hops(1, 64);
        assert_eq!(step(SWITCH, &mut long), Step::Drop);
    }

    #[test]
    fn the_ends_of_a_route_can_go_by_lid() {
        let mut out = DirectedSmp { dr_dlid: Lid(7), ..smp(1, &[4]) };
        assert_eq!(step(SWITCH, &mut out), Step::Lid(Lid(7)));
        assert_eq!(step(ADAPTER, &mut out), Step::Agent);
        let mut back = DirectedSmp { dr_slid: Lid(9), ..smp(1, &[4]) };
        back.header.status = MadStatus::OK.returning();
        assert_eq!(step(SWITCH, &mut back), Step::Lid(Lid(9)));
        assert_eq!(step(ADAPTER, &mut back), Step::Sender);
    }

    proptest! {
        #[test]
        fn no_packet_goes_by_a_port_that_there_is_not(
            pointer: u8, count: u8, returning: bool, paths: [u8; 32], in_port in 0u8..9,
            is_switch: bool, starts: bool,
        ) {
            let mut smp = DirectedSmp::default();
            smp.set_hops(pointer, count);
            smp.initial_path[..32].copy_from_slice(&paths);
            smp.return_path[32..].copy_from_slice(&paths);
            if returning {
                smp.header.status = MadStatus::OK.returning();
            }
            let in_port = (!starts).then_some(in_port);
            let position = DirectedPosition { in_port, is_switch, num_ports: 8 };
            if let Step::Port(port) = step(position, &mut smp) {
                prop_assert!((1..=8).contains(&port));
            }
        }
    }
}
