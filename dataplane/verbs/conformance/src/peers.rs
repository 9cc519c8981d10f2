//! Queue pairs for cases, and the objects that they depend on.

use super::adapters::Side;
use super::buffer::{Buffer, UNTOUCHED};
use super::context::Context;
use super::verdict::Stop;
use pollux_verbs::memory::{Access, Cq, Pd, Qp, Srq};
use pollux_verbs::qp::{QpAttributes, QpInit, QpState, QpType, Retries};
use pollux_verbs::work::Destination;
use pollux_wire::address::Qpn;
use pollux_wire::keys::QKey;
use pollux_wire::packet::RnrTimer;
use pollux_wire::psn::Psn;
use pollux_wire::units::{Mtu, TimeCode};

/// All remote rights.
pub const REMOTE: Access = Access::ALL.remote();

/// The protection domain and the completion queues of queue pairs.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub side: Side,
    pub pd: Pd,
    pub send_cq: Cq,
    pub recv_cq: Cq,
    /// `None` if each queue pair has its own receive queue.
    pub srq: Option<Srq>,
}

#[derive(Clone, Copy, Debug)]
pub struct PairEnd {
    pub place: Place,
    pub qp: Qp,
    pub qpn: Qpn,
    pub qp_type: QpType,
}

impl PairEnd {
    pub fn side(&self) -> Side {
        self.place.side
    }
}

/// The attributes of a pair of queue pairs. Cases change single fields.
#[derive(Clone, Copy, Debug)]
pub struct PairSetup {
    pub qp_type: QpType,
    /// `None` for the largest MTU of both ports.
    pub path_mtu: Option<Mtu>,
    pub access: Access,
    pub retry_count: u8,
    pub rnr_retry: u8,
    pub timeout: TimeCode,
    pub min_rnr_timer: RnrTimer,
    pub initiator_depth: u8,
    pub responder_resources: u8,
    /// The first PSN that A sends.
    pub psn_a: u32,
    /// The first PSN that B sends.
    pub psn_b: u32,
    pub requests_max: u32,
    pub sges_max: u32,
    pub inline_bytes_max: u32,
    pub signal_all: bool,
    pub qkey: QKey,
    pub pkey_index: u16,
}

impl PairSetup {
    /// The setup of most cases. A requester retries for 4 s, because the peer's thread may have to
    /// wait for a processor.
    pub const fn new(qp_type: QpType) -> Self {
        Self {
            qp_type,
            path_mtu: None,
            access: REMOTE,
            retry_count: 7,
            rnr_retry: 7,
            timeout: TimeCode(17),
            min_rnr_timer: RnrTimer(1),
            initiator_depth: 4,
            responder_resources: 4,
            psn_a: 0x12_3456,
            psn_b: 0x65_4321,
            requests_max: 16,
            sges_max: 4,
            inline_bytes_max: 0,
            signal_all: false,
            qkey: QKey(0x1234_5678),
            pkey_index: 0,
        }
    }

    pub const RC: Self = Self::new(QpType::Rc);
    pub const UC: Self = Self::new(QpType::Uc);
    pub const UD: Self = Self::new(QpType::Ud);
}

impl Context<'_> {
    /// A protection domain and two completion queues, which the context polls from now on.
    pub fn place(&mut self, side: Side) -> Result<Place, Stop> {
        let room = self.limits().completions_max.min(256);
        let pd = self.device(side).create_pd()?;
        let send_cq = self.cq(side, room)?;
        let recv_cq = self.cq(side, room)?;
        Ok(Place { side, pd, send_cq, recv_cq, srq: None })
    }

    /// As [`Self::place`], with a shared receive queue.
    pub fn place_with_srq(&mut self, side: Side, requests_max: u32) -> Result<Place, Stop> {
        let place = self.place(side)?;
        let srq = self.device(side).create_srq(place.pd, requests_max, 1)?;
        Ok(Place { srq: Some(srq), ..place })
    }

    /// A completion queue, which the context polls from now on.
    pub fn cq(&mut self, side: Side, completions_max: u32) -> Result<Cq, Stop> {
        let cq = self.device(side).create_cq(completions_max)?;
        let owner = self.owner(side);
        self.inbox.entry((owner, cq)).or_default();
        Ok(cq)
    }

    pub fn leave_cq(&mut self, side: Side, cq: Cq) {
        let owner = self.owner(side);
        self.inbox.remove(&(owner, cq));
    }

    pub fn qp_init(&mut self, place: &Place, setup: &PairSetup) -> QpInit {
        let limits = self.limits();
        QpInit {
            qp_type: setup.qp_type,
            pd: place.pd,
            send_cq: place.send_cq,
            recv_cq: place.recv_cq,
            srq: place.srq,
            send_requests_max: setup.requests_max.min(limits.requests_max),
            recv_requests_max: setup.requests_max.min(limits.requests_max),
            send_sges_max: setup.sges_max.min(limits.sges_max),
            recv_sges_max: setup.sges_max.min(limits.sges_max),
            inline_bytes_max: setup.inline_bytes_max.min(limits.inline_bytes_max),
            signal_all: setup.signal_all,
        }
    }

    /// A queue pair in RESET.
    pub fn create(&mut self, place: &Place, setup: &PairSetup) -> Result<PairEnd, Stop> {
        let init = self.qp_init(place, setup);
        let qp = self.device(place.side).create_qp(&init)?;
        let qpn = self.device(place.side).qpn(qp)?;
        Ok(PairEnd { place: *place, qp, qpn, qp_type: setup.qp_type })
    }

    /// The change from the previous state to `to`, with all required attributes.
    pub fn change(
        &mut self,
        end: &PairEnd,
        to: QpState,
        peer: &PairEnd,
        setup: &PairSetup,
    ) -> Result<QpAttributes, Stop> {
        let (own_psn, its_psn) = match (end.side(), peer.side()) {
            (Side::A, _) | (Side::SecondContext, Side::B) => (setup.psn_a, setup.psn_b),
            (Side::B | Side::SecondContext, _) => (setup.psn_b, setup.psn_a),
        };
        let change = match to {
            QpState::Init => self.init_change(end, setup),
            QpState::Rtr if setup.qp_type != QpType::Ud => {
                self.rtr_change(end, peer, setup, its_psn)?
            }
            QpState::Rts => self.rts_change(setup, own_psn),
            _ => QpAttributes::default(),
        };
        Ok(QpAttributes { state: Some(to), ..change })
    }

    fn init_change(&mut self, end: &PairEnd, setup: &PairSetup) -> QpAttributes {
        let is_ud = setup.qp_type == QpType::Ud;
        QpAttributes {
            pkey_index: Some(setup.pkey_index),
            port: Some(self.port(end.side())),
            access: (!is_ud).then_some(setup.access),
            qkey: is_ud.then_some(setup.qkey),
            ..QpAttributes::default()
        }
    }

    fn rtr_change(
        &mut self,
        end: &PairEnd,
        peer: &PairEnd,
        setup: &PairSetup,
        its_psn: u32,
    ) -> Result<QpAttributes, Stop> {
        let is_rc = setup.qp_type == QpType::Rc;
        let resources = setup.responder_resources.min(self.limits().responder_resources_max);
        Ok(QpAttributes {
            path: Some(self.path(end.side(), peer.side())?),
            path_mtu: Some(setup.path_mtu.unwrap_or(self.mtu()?)),
            dest_qp: Some(peer.qpn),
            rq_psn: Some(Psn::new(its_psn)),
            responder_resources: is_rc.then_some(resources),
            min_rnr_timer: is_rc.then_some(setup.min_rnr_timer),
            ..QpAttributes::default()
        })
    }

    fn rts_change(&mut self, setup: &PairSetup, own_psn: u32) -> QpAttributes {
        let sends = QpAttributes { sq_psn: Some(Psn::new(own_psn)), ..QpAttributes::default() };
        if setup.qp_type != QpType::Rc {
            return sends;
        }
        let depth = setup.initiator_depth.min(self.limits().initiator_depth_max);
        QpAttributes {
            timeout: Some(setup.timeout),
            retry_count: Retries::new(setup.retry_count),
            rnr_retry: Retries::new(setup.rnr_retry),
            initiator_depth: Some(depth),
            ..sends
        }
    }

    /// Changes `end` to INIT, RTR and RTS in turn, up to `last`.
    pub fn advance(
        &mut self,
        end: &PairEnd,
        last: QpState,
        peer: &PairEnd,
        setup: &PairSetup,
    ) -> Result<(), Stop> {
        for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
            if to <= last {
                let change = self.change(end, to, peer, setup)?;
                self.device(end.side()).modify_qp(end.qp, &change)?;
            }
        }
        Ok(())
    }

    /// Connects two queue pairs and changes both to RTS.
    pub fn connect(&mut self, a: &PairEnd, b: &PairEnd, setup: &PairSetup) -> Result<(), Stop> {
        self.advance(a, QpState::Rtr, b, setup)?;
        self.advance(b, QpState::Rtr, a, setup)?;
        for (end, peer) in [(a, b), (b, a)] {
            let change = self.change(end, QpState::Rts, peer, setup)?;
            self.device(end.side()).modify_qp(end.qp, &change)?;
        }
        Ok(())
    }

    /// A pair of queue pairs in RTS, each at a new place.
    pub fn pair(&mut self, setup: &PairSetup) -> Result<(PairEnd, PairEnd), Stop> {
        let places = (self.place(Side::A)?, self.place(Side::B)?);
        self.pair_at(&places.0, &places.1, setup)
    }

    /// As [`Self::pair`], at existing places.
    pub fn pair_at(
        &mut self,
        a: &Place,
        b: &Place,
        setup: &PairSetup,
    ) -> Result<(PairEnd, PairEnd), Stop> {
        let a = self.create(a, setup)?;
        let b = self.create(b, setup)?;
        self.connect(&a, &b, setup)?;
        Ok((a, b))
    }

    /// A pair with the default setup of this type.
    pub fn connected(&mut self, qp_type: QpType) -> Result<(PairEnd, PairEnd), Stop> {
        self.pair(&PairSetup::new(qp_type))
    }

    /// The destination of datagrams from `from` to `to`, both of the default setup.
    pub fn destination(&mut self, from: &PairEnd, to: &PairEnd) -> Result<Destination, Stop> {
        let path = self.path(from.side(), to.side())?;
        let ah = self.device(from.side()).create_ah(from.place.pd, &path)?;
        Ok(Destination { ah, qpn: to.qpn, qkey: PairSetup::UD.qkey })
    }

    /// Registered memory in the protection domain of `place`, filled with [`UNTOUCHED`].
    pub fn buffer(&mut self, place: &Place, bytes: usize, access: Access) -> Result<Buffer, Stop> {
        let memory = self.memory(bytes.max(1))?;
        let blank = [UNTOUCHED; 4096];
        for at in (0..memory.bytes()).step_by(blank.len()) {
            let part = blank.len().min(memory.bytes() - at);
            assert!(memory.write(at, &blank[..part]), "it is the memory's own length");
        }
        let region = self.device(place.side).register(place.pd, &memory, access)?;
        self.memories.push(memory.clone());
        Ok(Buffer { memory, region })
    }

    /// Memory to send from, filled with the pattern of `seed`.
    pub fn source(&mut self, end: &PairEnd, bytes: usize, seed: u8) -> Result<Buffer, Stop> {
        let buffer = self.buffer(&end.place, bytes, Access::NONE)?;
        buffer.put(0, &super::buffer::pattern(seed, bytes));
        Ok(buffer)
    }

    pub fn sink(&mut self, end: &PairEnd, bytes: usize) -> Result<Buffer, Stop> {
        self.buffer(&end.place, bytes, Access::LOCAL_WRITE)
    }

    /// Memory with all rights for peers.
    pub fn shared(&mut self, end: &PairEnd, bytes: usize) -> Result<Buffer, Stop> {
        self.buffer(&end.place, bytes, Access::ALL)
    }
}
