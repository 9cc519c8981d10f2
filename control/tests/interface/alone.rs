//! One interface alone, with a subnet administrator that answers only when a test says how.

use crate::port_driver::PortDriver;
use pollux_control::ipoib::{InterfaceConfig, IpoibInterface, PortView};
use pollux_control::mad::{Envelope, MadAddress};
use pollux_verbs::time::Time;
use pollux_wire::address::{Gid, Guid, Lid, Qpn};
use pollux_wire::keys::{PKey, QKey};
use pollux_wire::mad::notice::{GidTrap, Notice, NoticeReport, TrapDetails, TrapNumber};
use pollux_wire::mad::sa::{
    InformInfo, JoinState, McMemberRecord, McMemberRecordMask, PathRecord, SaMad,
};
use pollux_wire::mad::smp::PortState;
use pollux_wire::mad::{Attribute, MadHeader, MadStatus, Method};
use pollux_wire::units::{Mtu, Rate};
use std::time::Duration;

/// The interface, its port, and the requests that wait for an answer.
pub struct Alone {
    pub interface: IpoibInterface,
    pub port_driver: PortDriver,
    pub view: PortView,
    pub now: Time,
    /// Requests without an answer, oldest first, each once however often it was sent.
    pub requests: Vec<Envelope>,
    /// What was asked since this was looked at last, repetitions left out.
    said: Vec<String>,
    /// Frames that left.
    pub frames: usize,
    reports: u64,
}

/// The port of all these tests: active, in the default partition.
pub fn port() -> PortView {
    PortView {
        number: 1,
        state: PortState::ACTIVE,
        lid: Lid(5),
        lmc: 0,
        sm_lid: Lid(1),
        sm_sl: 0,
        mtu: Mtu::BYTES_2048,
        gids: vec![Gid::new(Gid::DEFAULT_PREFIX, Guid(0x50))],
        pkeys: vec![PKey::DEFAULT],
    }
}

impl Alone {
    /// An interface of which the port is not known yet.
    pub fn new(adjust: impl Fn(InterfaceConfig) -> InterfaceConfig) -> Self {
        let config = adjust(InterfaceConfig::new(Guid(0x50), Qpn(0x48), PKey::DEFAULT));
        Self {
            interface: IpoibInterface::new(Time::START, config, 7),
            port_driver: PortDriver::default(),
            view: port(),
            now: Time::START,
            requests: Vec::new(),
            said: Vec::new(),
            frames: 0,
            reports: 0,
        }
    }

    /// The interface sees its port, as it is after `change`.
    pub fn see(&mut self, change: impl Fn(&mut PortView)) {
        change(&mut self.view);
        self.interface.handle_port(self.now, &self.view);
        self.take();
    }

    /// Takes all that the interface has to say and to do.
    pub fn take(&mut self) {
        while let Some(action) = self.interface.poll_action() {
            self.port_driver.act(action);
        }
        while let Some(envelope) = self.interface.poll_mad() {
            let is_same = |known: &Envelope| known.mad[8..16] == envelope.mad[8..16];
            let (header, _) = MadHeader::read(&envelope.mad).unwrap();
            if header.method != Method::REPORT_RESP && !self.requests.iter().any(is_same) {
                self.said.push(name(&envelope));
                self.requests.push(envelope);
            }
        }
        self.frames += std::iter::from_fn(|| self.interface.poll_frame()).count();
    }

    /// What was asked since this was called last, in order.
    pub fn said(&mut self) -> Vec<String> {
        self.take();
        std::mem::take(&mut self.said)
    }

    /// Answers the oldest request with this name; false if there is none.
    pub fn answer(&mut self, asked: &str, status: MadStatus, mtu: Mtu) -> bool {
        self.take();
        let Some(at) = self.requests.iter().position(|request| name(request) == asked) else {
            return false;
        };
        let request = self.requests.remove(at);
        self.interface.handle_mad(self.now, &answered(&request, status, mtu));
        self.take();
        true
    }

    /// Nothing is answered for longer than requests are sent again.
    pub fn be_silent(&mut self) {
        for _ in 0..200 {
            self.pass(Duration::from_millis(100));
        }
    }

    /// The administrator reports that a group was created or deleted.
    pub fn be_told(&mut self, trap_number: TrapNumber, mgid: Gid) {
        self.reports += 1;
        let data_details = TrapDetails::Gid(GidTrap { gid: mgid }).emit();
        let notice = Notice { is_generic: true, trap_number, data_details, ..Notice::default() };
        let report = NoticeReport { notice, issuer_gid: Gid::NONE };
        let mad = SaMad::new(Method::REPORT, self.reports, 0, report).emit();
        let peer = MadAddress::gsi(self.view.sm_lid, 0, PKey::DEFAULT);
        self.interface.handle_mad(self.now, &Envelope { peer, mad });
        self.take();
    }

    /// Advances the time.
    pub fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        if self.interface.poll_timeout().is_some_and(|due| due <= self.now) {
            self.interface.handle_timeout(self.now);
        }
        self.take();
    }

    /// Up, and everything that it asks for then is granted.
    pub fn up(&mut self) {
        self.see(|_| {});
        self.grant_all();
        assert!(self.interface.is_up(), "{:?}", self.interface.row());
    }

    /// Grants all requests.
    pub fn grant_all(&mut self) {
        self.take();
        while let Some(request) = self.requests.first().map(name) {
            self.answer(&request, MadStatus::OK, Mtu::BYTES_2048);
        }
        self.said();
    }
}

/// What a request is for, in a word.
fn name(envelope: &Envelope) -> String {
    let mad = SaMad::parse(&envelope.mad);
    match (mad.header.attribute_id, mad.header.method) {
        (McMemberRecord::ID, method) => {
            let (mask, record) = mad.record::<McMemberRecord>().unwrap();
            let creates = mask == McMemberRecordMask::LINUX_JOIN;
            let how = if record.join_state == JoinState::FULL_MEMBER { "" } else { " to send" };
            let of =
                if record.mgid.0[12..] == [255; 4] { "broadcast".into() } else { short(&record) };
            let verb = match method {
                Method::DELETE => "leave",
                _ if creates => "create",
                _ => "join",
            };
            format!("{verb} {of}{how}")
        }
        (InformInfo::ID, _) => {
            let (_, record) = mad.record::<InformInfo>().unwrap();
            let verb = if record.subscribe == 1 { "subscribe" } else { "unsubscribe" };
            let created = record.trap_number == TrapNumber::MULTICAST_GROUP_CREATED;
            format!("{verb} {}", if created { "created" } else { "deleted" })
        }
        (PathRecord::ID, _) => "path".into(),
        (id, method) => format!("{id:?} {method:?}"),
    }
}

/// The version of IP that the group is of, and its last bits.
fn short(record: &McMemberRecord) -> String {
    let version = record.mgid.0[2] >> 4;
    let last = u32::from_be_bytes(*record.mgid.0.last_chunk().unwrap());
    format!("v{version} {last:x}")
}

fn answered(request: &Envelope, status: MadStatus, mtu: Mtu) -> Envelope {
    let mut mad = SaMad::parse(&request.mad);
    if mad.header.attribute_id == McMemberRecord::ID {
        let (mask, record) = mad.record::<McMemberRecord>().unwrap();
        let (q_key, rate, mlid) = (QKey::IPOIB_OPENSM, Rate::GBPS_10, Lid(0xc001));
        let made = McMemberRecord { q_key, mtu, rate, mlid, ..record };
        mad = SaMad { header: mad.header, ..SaMad::new(Method::GET_RESP, 0, mask, made) };
    }
    mad.header.method = mad.header.method.response();
    mad.header.status = status;
    Envelope { peer: request.peer, mad: mad.emit() }
}
