//! Our connections and a peer's plain connection management, led by hand, with nothing lost between
//! them and no device.

use super::*;
use crate::cm::CmDatagram;
use pollux_wire::mad::cm::ipoib::AskingWorker;

pub(super) const OURS: LinkAddress = address(0x48, 1);
pub(super) const THEIRS: LinkAddress = address(0x60, 2);

pub(super) const fn address(qpn: u32, guid: u64) -> LinkAddress {
    let gid = Gid::new(Gid::DEFAULT_PREFIX, Guid(guid));
    LinkAddress { rc: true, uc: false, qpn: Qpn(qpn), gid }
}

pub(super) fn path(from: &LinkAddress, to: &LinkAddress) -> PathRecord {
    let lid = |link: &LinkAddress| Lid(link.gid.guid().0 as u16);
    PathRecord {
        sgid: from.gid,
        dgid: to.gid,
        slid: lid(from),
        dlid: lid(to),
        p_key: PKey::DEFAULT,
        mtu: Mtu::BYTES_2048,
        packet_life_time: TimeCode(14),
        ..PathRecord::default()
    }
}

/// Our connections, and a peer's manager.
pub(super) struct Pair {
    pub(super) ours: Connections,
    pub(super) theirs: Cm,
    pub(super) their_lid: Lid,
    pub(super) now: Time,
    pub(super) queue_pairs: BTreeMap<ConnectionKey, (Qpn, QpState)>,
    pub(super) made: u32,
    /// What they accepted, by which their next queue pair has its number.
    pub(super) accepted: u32,
    /// The kind of connection that is asked for, by either.
    pub(super) qp_type: QpType,
    /// The peer gets no message of ours.
    pub(super) is_deaf: bool,
    /// What their requests say of their workers.
    pub(super) asking: Option<AskingWorker>,
    /// The events of the peer's CM.
    pub(super) told: Vec<CmEvent>,
    /// Every message, and whether it is ours.
    pub(super) said: Vec<(bool, CmMessage)>,
    /// How far the newest queue pair was when our first REP left.
    pub(super) ready_at_rep: Option<QpState>,
    /// How queue pairs were made ready.
    pub(super) modified: Vec<QpAttributes>,
}

impl Pair {
    pub(super) fn new(listens: &[Dialect]) -> Self {
        let port = LocalPort { gids: vec![OURS.gid], ..LocalPort::default() };
        Self::at(port, listens)
    }

    pub(super) fn at(port: LocalPort, listens: &[Dialect]) -> Self {
        Self::of(1, port, listens)
    }

    /// The same with so many workers of ours.
    pub(super) fn of(workers: u8, port: LocalPort, listens: &[Dialect]) -> Self {
        let config = PeerConfig { policy: Policy::Auto, migrates: true, ..PeerConfig::of(Guid(1)) };
        let mut ours = Connections::new(config, workers, 1);
        let (p_key, pkey_index, datagram_mtu) = (PKey::DEFAULT, 0, 2044);
        let local = LocalEnd { link: OURS, p_key, pkey_index, port, datagram_mtu };
        ours.set_local_end(Time::START, Some(local));
        let mut theirs = Cm::new(CmConfig::of(Guid(2)), SeededRng::new(2));
        for dialect in listens {
            theirs.listen(dialect.service_id(THEIRS.qpn), [0; 148]).unwrap();
        }
        Self {
            ours,
            theirs,
            their_lid: Lid(2),
            now: Time::START,
            queue_pairs: BTreeMap::new(),
            made: 0x100,
            accepted: 0,
            qp_type: QpType::Rc,
            is_deaf: false,
            asking: None,
            told: vec![],
            said: vec![],
            ready_at_rep: None,
            modified: vec![],
        }
    }

    pub(super) fn act(&mut self) {
        while let Some(action) = self.ours.poll_action() {
            let (key, news) = match action {
                Action::Connect { connection, .. } => {
                    self.made += 1;
                    let qpn = Qpn(self.made);
                    self.queue_pairs.insert(connection, (qpn, QpState::Init));
                    (connection, QueuePairEvent::Made { qpn })
                }
                Action::Modify { connection, attributes, .. } => {
                    let (_, state) = self.queue_pairs.get_mut(&connection).unwrap();
                    *state = transition::check(self.qp_type, *state, &attributes).unwrap();
                    self.modified.push(*attributes);
                    continue;
                }
                Action::Disconnect { connection, .. } => {
                    self.queue_pairs.remove(&connection);
                    (connection, QueuePairEvent::Ended)
                }
                other => panic!("{other:?}"),
            };
            self.ours.handle_event(self.now, key, &news);
        }
    }

    pub(super) fn settle(&mut self) {
        loop {
            self.act();
            if let Some(envelope) = self.ours.poll_mad() {
                let (_, message) = CmMessage::parse_mad(&envelope.mad).unwrap();
                if matches!(message, CmMessage::Rep(_)) && self.ready_at_rep.is_none() {
                    self.ready_at_rep = self.queue_pairs.values().last().map(|it| it.1);
                }
                self.said.push((true, message));
                let peer = MadAddress::gsi(Lid(1), 0, PKey::DEFAULT);
                if !self.is_deaf {
                    self.theirs.handle_mad(
                        self.now,
                        &CmDatagram::parse(&Envelope { peer, mad: envelope.mad }),
                    );
                }
            } else if let Some(envelope) = self.theirs.poll_transmit() {
                let (_, message) = CmMessage::parse_mad(&envelope.mad).unwrap();
                self.said.push((false, message));
                let peer = MadAddress::gsi(self.their_lid, 0, PKey::DEFAULT);
                self.ours.handle_mad(
                    self.now,
                    &CmDatagram::parse(&Envelope { peer, mad: envelope.mad }),
                );
            } else {
                break;
            }
        }
        self.told.extend(std::iter::from_fn(|| self.theirs.poll_event()));
        self.ours.check_states();
    }

    pub(super) fn connect(&mut self) {
        self.connect_by(WorkerId::PRIMARY);
    }

    /// One of our workers has a packet for the peer.
    pub(super) fn connect_by(&mut self, worker: WorkerId) {
        self.ours.connect(self.now, &THEIRS, worker, self.qp_type, &path(&OURS, &THEIRS));
        self.settle();
    }

    /// The peer accepts what it was asked for, with these private data.
    pub(super) fn accept(&mut self, receive_mtu: u32, ud_qpn: Qpn) {
        let asked = self.told.drain(..).find_map(|event| match event {
            CmEvent::Request { key: id, .. } => Some(id),
            _ => None,
        });
        let private_data = IpoibPrivateData { ud_qpn, receive_mtu }.padded();
        let local_qpn = Qpn(0x500 + self.accepted);
        self.accepted += 1;
        let rep = Rep { local_qpn, rnr_retry_count: 7, private_data, ..Rep::default() };
        self.theirs.accept(self.now, asked.unwrap(), rep).unwrap();
        self.settle();
    }

    /// The peer asks, in a dialect.
    pub(super) fn ask(&mut self, dialect: Dialect, from: &LinkAddress, qpn: u32) -> ConnectionKey {
        self.ask_along(&path(from, &OURS), dialect, from, qpn)
    }

    pub(super) fn ask_along(
        &mut self,
        path: &PathRecord,
        dialect: Dialect,
        from: &LinkAddress,
        qpn: u32,
    ) -> ConnectionKey {
        self.ask_for(path, dialect, from, qpn, None)
    }

    pub(super) fn ask_for(
        &mut self,
        path: &PathRecord,
        dialect: Dialect,
        from: &LinkAddress,
        qpn: u32,
        alternate: Option<&PathRecord>,
    ) -> ConnectionKey {
        let alternate = alternate.map(|path| as_requested(path, TimeCode(8)));
        let words = IpoibPrivateData { ud_qpn: from.qpn, receive_mtu: 65_524 };
        let asking = self.asking.as_ref();
        let req = Req {
            service_id: dialect.service_id(OURS.qpn),
            local_qpn: Qpn(qpn),
            transport_service: match self.qp_type {
                QpType::Uc => TransportService::UC,
                _ => TransportService::RC,
            },
            starting_psn: Psn::new(0),
            private_data: asking.map_or_else(|| words.padded(), |it| words.padded_with(it)),
            alternate: alternate.unwrap_or_default(),
            ..request_along(path, TimeCode(8))
        };
        let to = MadAddress::gsi(Lid(1), 0, PKey::DEFAULT);
        let packet_life_time = TimeCode(14);
        let key = self.theirs.new_key();
        self.theirs.connect(self.now, key, Connect { to, req, packet_life_time }).unwrap();
        key
    }

    pub(super) fn confirm_all(&mut self) {
        for event in std::mem::take(&mut self.told) {
            if let CmEvent::Reply { key: id, .. } = event {
                self.theirs.confirm(self.now, id, [0; 224]).unwrap();
            }
        }
        self.settle();
    }

    pub(super) fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        while let Some(due) = [self.ours.poll_timeout(), self.theirs.poll_timeout()]
            .into_iter()
            .flatten()
            .min()
            .filter(|due| *due <= until)
        {
            self.now = self.now.max(due);
            self.ours.handle_timeout(self.now);
            self.theirs.handle_timeout(self.now);
            self.settle();
        }
        self.now = until;
    }

    pub(super) fn mtu(&self) -> Option<u32> {
        match self.ours.peer_state(&THEIRS, WorkerId::PRIMARY) {
            PeerState::Open { mtu, .. } => Some(mtu),
            _ => None,
        }
    }
}
