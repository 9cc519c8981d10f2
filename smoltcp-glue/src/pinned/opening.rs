//! Starts the threads of an interface. The calling thread starts all of them, the control thread
//! and the workers: a thread that a pinned worker starts would run on the core of that worker.

use super::common_state::CommonState;
use super::doorbell::{Doorbell, Inbox};
use super::{Alive, Config, Worker, lock};
use crate::admin::{ProgramAdmin, SocketsRequest};
use crate::clock::Clock;
use crate::control_thread::{ControlHandle, ControlThread, StepHooks};
use crate::error::UpError;
use crate::host::Host;
use crate::interface::seed;
use crate::stack::StackConfig;
use pollux_control::thread_check::mark_worker_thread;
use pollux_dataplane::engine;
use pollux_dataplane::engine::counts::{CountsSegment, CountsWriter};
use pollux_dataplane::flow::FlowSteering;
use pollux_node::Opened;
use pollux_node::config::{INTERFACE_WORKERS_MAX, InterfaceSettings};
use pollux_verbs::time::Time;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use std::thread::Builder;
use std::time::Duration;

pub(crate) struct Plan {
    pub(crate) opened: Opened,
    pub(crate) settings: InterfaceSettings,
    pub(crate) stack: StackConfig,
    pub(crate) timeout: Duration,
    pub(crate) config: Config,
    pub(crate) admin: Option<ProgramAdmin>,
}

type Doorbells = Arc<[Arc<Doorbell>]>;

struct Start {
    number: usize,
    host: Host,
    inbox: Inbox,
    alive: Weak<Alive>,
    control: ControlHandle,
    doorbells: Doorbells,
    clock: Clock,
    config: Config,
    counts: CountsWriter,
    /// How long a peer may leave data unacknowledged.
    user_timeout: Duration,
    /// Receives whether the worker has started, or why not.
    started: Sender<Result<(), UpError>>,
}

/// Opens an interface and starts its threads; returns when all workers serve it.
pub(super) fn open(plan: Plan) -> Result<Arc<Alive>, UpError> {
    let Plan { opened, mut settings, stack, config, admin, .. } = plan;
    let config = config.round_rings();
    settings.workers = worker_count(&config, &settings)?;
    let (doorbells, inboxes) = doorbells(settings.workers, config.sockets_max)?;
    let clock = Clock::begin();
    let (interface, hosts) =
        Host::for_workers(clock.now(), opened, &settings, &stack, seed).map_err(UpError::Device)?;
    let control = ControlThread::start(interface, clock, Wakers(Arc::clone(&doorbells)), admin);
    let alive = Arc::new(Alive {
        doorbells: Arc::clone(&doorbells),
        steering: FlowSteering::among(settings.workers),
        turn: AtomicUsize::new(0),
        threads: Mutex::default(),
        control: control.map_err(UpError::Thread)?,
    });
    let (started, all_started) = channel();
    let (_, counts) = CountsSegment::create(hosts.len())
        .map_err(|why| UpError::Worker(format!("no memory for counters: {why}")))?;
    for (number, ((host, inbox), counts)) in hosts.into_iter().zip(inboxes).zip(counts).enumerate()
    {
        let start = Start {
            number,
            host,
            inbox,
            alive: Arc::downgrade(&alive),
            control: alive.control.handle().clone(),
            doorbells: Arc::clone(&doorbells),
            clock,
            config: config.clone(),
            counts,
            user_timeout: stack.tcp.user_timeout,
            started: started.clone(),
        };
        let thread = Builder::new().name(format!("pollux-worker{number}"));
        let thread = thread.spawn(|| start.serve()).map_err(|why| UpError::Worker(why.to_string()));
        lock(&alive.threads).push(thread?);
    }
    drop(started);
    for _ in doorbells.iter() {
        let started = all_started.recv();
        started.unwrap_or_else(|_| Err(UpError::Worker("it panicked".into())))?;
    }
    Ok(alive)
}

/// Wakes workers that got commands of the control thread.
struct Wakers(Doorbells);

impl StepHooks for Wakers {
    fn after_step(&mut self, _: Time, notified: u32) -> bool {
        let is_notified = |worker: &usize| notified >> worker & 1 > 0;
        (0..self.0.len()).filter(is_notified).for_each(|worker| self.0[worker].wake());
        false
    }

    fn ask_sockets(&mut self, _: Time, worker: usize, request: SocketsRequest) -> bool {
        let Some(doorbell) = self.0.get(worker) else { return false };
        doorbell.submit(Box::new(|worker, now| worker.answer(now, request)));
        true
    }
}

fn worker_count(config: &Config, settings: &InterfaceSettings) -> Result<u8, UpError> {
    match config.workers.max(settings.workers) {
        0 => Err(UpError::Worker("0 workers are too few; set at least 1".into())),
        count if count > INTERFACE_WORKERS_MAX => Err(UpError::Worker(format!(
            "{count} workers are too many; write {INTERFACE_WORKERS_MAX} at most"
        ))),
        count => Ok(count),
    }
}

fn doorbells(workers: u8, sockets_max: usize) -> Result<(Doorbells, Vec<Inbox>), UpError> {
    let common = Arc::new(CommonState::new(workers.into(), sockets_max));
    let pairs = (0..workers).map(|_| Doorbell::new(&common, sockets_max));
    let pairs: Vec<_> = pairs
        .collect::<Option<_>>()
        .ok_or_else(|| UpError::Worker(format!("{sockets_max} sockets are too many")))?;
    let (doorbells, inboxes): (Vec<_>, _) = pairs.into_iter().unzip();
    Ok((doorbells.into_iter().map(Arc::new).collect(), inboxes))
}

impl Start {
    fn serve(mut self) {
        if let Err(why) = self.pin() {
            return drop(self.started.send(Err(why)));
        }
        mark_worker_thread();
        let (engine, handle) = engine::worker(self.config.idle, self.counts, seed());
        let worker = Worker::new(
            (&mut self.host, self.clock),
            (self.doorbells, self.inbox),
            (self.alive, self.control),
            (self.config, self.user_timeout),
            handle,
        );
        let _ = self.started.send(Ok(()));
        drop(self.started);
        worker.run(engine);
    }

    fn pin(&self) -> Result<(), UpError> {
        let Some(&core) = self.config.cores.get(self.number) else { return Ok(()) };
        let cores = core_affinity::get_core_ids().unwrap_or_default();
        let known = cores.into_iter().find(|one| one.id == core);
        let is_pinned = known.is_some_and(core_affinity::set_for_current);
        is_pinned.then_some(()).ok_or(UpError::Core(core))
    }
}
