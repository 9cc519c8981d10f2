//! Two ends and their commands, in which cases are written.

use crate::own::Own;
use pollux_conformance::end::line::{Command, Reply};
use pollux_conformance::end::{MEMORY_BYTES, QKEY, STATUSES, op, pattern, sum};
use pollux_fabric::link::fault::Faults;
use pollux_verbs::CompletionStatus;
use pollux_wire::address::Qpn;
use std::time::{Duration, Instant};

/// An end, in this process or in a guest.
pub trait Peer {
    /// Sends it a command.
    fn begin(&mut self, command: Command);
    /// Lets it make progress; returns its reply, if any.
    fn step(&mut self) -> Option<Result<Reply, String>>;
}

/// The requester of a case. The other side is the responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Ours,
    Theirs,
}

impl Side {
    pub const fn other(self) -> Self {
        match self {
            Self::Ours => Self::Theirs,
            Self::Theirs => Self::Ours,
        }
    }
}

/// The IP family of a case: the index of its address in the GID tables of both.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Family {
    V6 = 0,
    V4 = 1,
}

pub struct Duel {
    pub ours: Own,
    pub theirs: Box<dyn Peer>,
}

#[derive(Clone, Copy)]
pub struct Connection {
    pub service: u64,
    pub mtu: u64,
    pub psn: u64,
    pub timeout: u64,
    pub retries: u64,
    pub rnr_retries: u64,
    pub rnr_timer: u64,
    pub depth: u64,
    /// The requester's rights at the responder.
    pub access: u64,
    /// Our index in the P_Key table, on either side.
    pub our_pkey_index: u64,
    /// Those of requester and responder.
    pub qkeys: [u64; 2],
    /// The error of the requester's responder QPN.
    pub qpn_off: u64,
    /// The group of the link that the requester sends to and the responder is in; 0: no group.
    pub group: u64,
}

/// The link-local prefix of groups.
const GROUP_PREFIX: u64 = 0xff02 << 48;

pub const RC: Connection = Connection {
    service: 0,
    mtu: 3,
    psn: 100,
    // Half a second: a machine in emulation stops now and then.
    timeout: 17,
    retries: 6,
    rnr_retries: 6,
    rnr_timer: 12,
    depth: 4,
    access: 15,
    our_pkey_index: 0,
    qkeys: [QKEY.0 as u64; 2],
    qpn_off: 0,
    group: 0,
};
pub const UC: Connection = Connection { service: 1, ..RC };
pub const UD: Connection = Connection { service: 2, ..RC };

/// The identity of an end.
#[derive(Clone, Copy, Default)]
pub struct Identity {
    prefix: u64,
    guid: u64,
    pub address: u64,
    pub rkey: u64,
    pub qpn: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    pub id: u64,
    pub status: CompletionStatus,
    pub is_recv: bool,
    pub bytes: u64,
    pub imm: Option<u64>,
    pub src_qp: u64,
}

/// Where in memory messages are sent from and received to.
pub const FROM: u64 = 0;
pub const TO: u64 = MEMORY_BYTES as u64 / 2;

/// The longest time of a single step.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The interval at which both ends are polled.
const POLL_PERIOD: Duration = Duration::from_micros(50);

impl Duel {
    /// Sends one side a command, and lets both make progress until it is done.
    #[expect(clippy::disallowed_methods, reason = "the other end may be a machine with a clock")]
    fn ask(&mut self, side: Side, command: Command) -> Result<Reply, String> {
        match side {
            Side::Ours => self.ours.begin(command),
            Side::Theirs => self.theirs.begin(command),
        }
        let end = Instant::now() + TIMEOUT;
        loop {
            let (ours, theirs) = (self.ours.step(), self.theirs.step());
            let reply = if side == Side::Ours { ours } else { theirs };
            if let Some(reply) = reply {
                return reply.map_err(|error| format!("{}: {error}", command.line()));
            }
            if Instant::now() > end {
                return Err(format!("{}: no reply", command.line()));
            }
            // A machine in emulation needs the processor more than we do.
            std::thread::sleep(POLL_PERIOD);
        }
    }
}

/// One case, with one side as the requester.
pub struct Trial<'a> {
    duel: &'a mut Duel,
    pub asker: Side,
    family: Family,
    pub asks: Identity,
    pub answers: Identity,
}

/// The result of a case: an error names the deviation.
pub type Outcome = Result<(), String>;

impl<'a> Trial<'a> {
    pub fn new(duel: &'a mut Duel, asker: Side, family: Family) -> Self {
        let (asks, answers) = Default::default();
        Self { duel, asker, family, asks, answers }
    }

    pub fn answerer(&self) -> Side {
        self.asker.other()
    }

    fn ask(&mut self, side: Side, command: Command) -> Result<Reply, String> {
        self.duel.ask(side, command)
    }

    fn create(&mut self, side: Side, connection: &Connection) -> Result<Identity, String> {
        let hello = self.ask(side, Command::Hello { gid_index: self.family as u64 })?;
        let is_asker = side == self.asker;
        let created = self.ask(
            side,
            Command::Create {
                service: connection.service,
                pkey_index: if side == Side::Ours { connection.our_pkey_index } else { 0 },
                access: if is_asker { 15 } else { connection.access },
                qkey: connection.qkeys[usize::from(!is_asker)],
            },
        )?;
        match (hello, created) {
            (Reply::Hello { prefix, guid, address, rkey, .. }, Reply::Created { qpn }) => {
                Ok(Identity { prefix, guid, address, rkey, qpn })
            }
            other => Err(format!("{other:?} is no answer")),
        }
    }

    /// Makes a queue pair at each side, and connects them.
    pub fn connect(&mut self, connection: &Connection) -> Outcome {
        let (asker, answerer) = (self.asker, self.answerer());
        self.asks = self.create(asker, connection)?;
        self.answers = self.create(answerer, connection)?;
        if connection.group != 0 {
            let group = Identity { prefix: GROUP_PREFIX, guid: connection.group, ..self.answers };
            let join = Command::Join { prefix: group.prefix, guid: group.guid };
            self.ask(answerer, join)?;
            self.answers = Identity { qpn: Qpn::MULTICAST.0.into(), ..group };
        }
        let wrong = Identity { qpn: self.answers.qpn ^ connection.qpn_off, ..self.answers };
        for (side, to) in [(answerer, self.asks), (asker, wrong)] {
            let connect = Command::Connect {
                qpn: to.qpn,
                prefix: to.prefix,
                guid: to.guid,
                mtu: connection.mtu,
                rq_psn: connection.psn,
                sq_psn: connection.psn,
                timeout: connection.timeout,
                retries: connection.retries,
                rnr_retries: connection.rnr_retries,
                rnr_timer: connection.rnr_timer,
                depth: connection.depth,
            };
            self.ask(side, connect)?;
        }
        Ok(())
    }

    /// Sets the faults of the requester's packets, and of those in the other direction.
    pub fn set_faults(&mut self, out: Faults, back: Faults) {
        match self.asker {
            Side::Ours => self.duel.ours.set_faults(out, back),
            Side::Theirs => self.duel.ours.set_faults(back, out),
        }
    }

    pub fn fill(&mut self, side: Side, at: u64, bytes: u64, seed: u64) -> Outcome {
        self.ask(side, Command::Fill { at, bytes, seed }).map(drop)
    }

    /// Fails unless these bytes match the seed.
    pub fn check(&mut self, side: Side, at: u64, bytes: u64, seed: u64) -> Outcome {
        let found = self.value(side, Command::Sum { at, bytes })?;
        expect("bytes", found, sum(&pattern(seed, bytes as usize)))
    }

    fn value(&mut self, side: Side, command: Command) -> Result<u64, String> {
        match self.ask(side, command)? {
            Reply::Value { value } => Ok(value),
            other => Err(format!("{other:?} is no value")),
        }
    }

    pub fn word(&mut self, side: Side, at: u64) -> Result<u64, String> {
        self.value(side, Command::Word { at })
    }

    /// Whether the queue pair of this side is in the error state.
    pub fn is_broken(&mut self, side: Side) -> Result<bool, String> {
        Ok(self.value(side, Command::State {})? == pollux_verbs::QpState::Err as u64)
    }

    /// Posts a receive at the responder.
    pub fn recv(&mut self, id: u64, at: u64, bytes: u64) -> Outcome {
        let answerer = self.answerer();
        self.ask(answerer, Command::Recv { id, at, bytes }).map(drop)
    }

    /// Posts a request at the requester.
    pub fn post(&mut self, request: Request) -> Outcome {
        let Request { id, op, at, bytes, to, rkey, first, second } = request;
        let is_datagram = matches!(op, op::DATAGRAM | op::DATAGRAM_IMM);
        let rkey = rkey.unwrap_or(if is_datagram { 0 } else { self.answers.rkey });
        let address = self.answers.address + to;
        let send = Command::Send { id, op, at, bytes, address, rkey, first, second };
        let asker = self.asker;
        self.ask(asker, send).map(drop)
    }

    /// The next completion of a side within so many milliseconds.
    pub fn poll(&mut self, side: Side, timeout_ms: u64) -> Result<Option<Done>, String> {
        match self.ask(side, Command::Poll { timeout_ms })? {
            Reply::Completed { id, status, is_recv, bytes, has_imm, imm, src_qp } => {
                Ok(Some(Done {
                    id,
                    status: STATUSES[status as usize],
                    is_recv: is_recv != 0,
                    bytes,
                    imm: (has_imm != 0).then_some(imm),
                    src_qp,
                }))
            }
            _ => Ok(None),
        }
    }

    pub fn wait(&mut self, side: Side) -> Result<Done, String> {
        self.poll(side, 15_000)?.ok_or("nothing completes".into())
    }

    /// Expects this completion of the requester's request.
    pub fn ends(&mut self, id: u64, status: CompletionStatus) -> Outcome {
        let done = self.wait(self.asker)?;
        expect("request", (done.id, done.status), (id, status))
    }

    /// Expects this completion of the responder's receive.
    pub fn received(&mut self, id: u64, bytes: u64, imm: Option<u64>) -> Outcome {
        let done = self.wait(self.answerer())?;
        let found = (done.id, done.status, done.is_recv, done.bytes, done.imm);
        expect("receive", found, (id, CompletionStatus::Success, true, bytes, imm))
    }

    /// Expects no further completion at either side.
    pub fn is_quiet(&mut self) -> Outcome {
        for side in [Side::Ours, Side::Theirs] {
            let more = self.poll(side, 20)?;
            expect("completion that nobody waits for", more, None)?;
        }
        Ok(())
    }
}

/// A request of the requester.
#[derive(Clone, Copy, Default)]
pub struct Request {
    pub id: u64,
    pub op: u64,
    pub at: u64,
    pub bytes: u64,
    /// The offset in the responder's memory.
    pub to: u64,
    /// A wrong key in place of the right one; of datagrams, the Q_Key.
    pub rkey: Option<u64>,
    pub first: u64,
    pub second: u64,
}

pub fn expect<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: T) -> Outcome {
    if found == expected {
        return Ok(());
    }
    Err(format!("{what}: {found:?}, and not {expected:?}"))
}
