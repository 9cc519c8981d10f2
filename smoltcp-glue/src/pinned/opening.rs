//! How an interface gets its workers: the first one opens it, and gives each of the others what it
//! has of it.
//!
//! The thread that asks for it starts all of them: one that another worker started would stay on
//! that one's core.

use super::doorbell::{Doorbell, Inbox};
use super::worker::Worker;
use super::{Alive, Config};
use crate::error::UpError;
use crate::host::Host;
use crate::interface::{Clock, disconnect, seed};
use crate::stack::StackConfig;
use pollux_node::Opened;
use pollux_node::config::InterfaceSettings;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::Builder;
use std::time::Duration;

/// What an interface is to be.
pub(crate) struct Plan {
    pub(crate) opened: Opened,
    pub(crate) settings: InterfaceSettings,
    pub(crate) stack: StackConfig,
    pub(crate) timeout: Duration,
    pub(crate) config: Config,
}

/// What each worker is told when it begins.
#[derive(Clone)]
struct Brief {
    alive: Weak<Alive>,
    doorbells: Arc<[Arc<Doorbell>]>,
    clock: Clock,
    config: Config,
    /// How long a peer may be silent that has something to acknowledge.
    user_timeout: Duration,
    /// Where it says that it serves, or why not. Whoever does not listen has gone.
    tell: Sender<Result<(), UpError>>,
}

/// Starts an interface's workers, each with its inbox; returns when all of them serve it.
pub(super) fn start(
    alive: &Arc<Alive>,
    plan: Plan,
    (first, others): (Inbox, impl IntoIterator<Item = Inbox>),
) -> Result<(), UpError> {
    let (tell, told) = channel();
    let brief = Brief {
        alive: Arc::downgrade(alive),
        doorbells: alive.doorbells.clone(),
        clock: Clock::begin(),
        config: plan.config.clone(),
        user_timeout: plan.stack.tcp.user_timeout,
        tell,
    };
    let mut secondaries = Vec::new();
    for (number, inbox) in (1..).zip(others) {
        let (brief, (give, given)) = (brief.clone(), channel());
        spawn(alive, number, move || brief.secondary(number, &given, inbox))?;
        secondaries.push(give);
    }
    spawn(alive, 0, move || brief.primary(plan, &secondaries, first))?;
    for _ in alive.doorbells.iter() {
        told.recv().unwrap_or_else(|_| Err(UpError::Worker("it panicked".into())))?;
    }
    Ok(())
}

fn spawn(
    alive: &Alive,
    number: usize,
    serve: impl FnOnce() + Send + 'static,
) -> Result<(), UpError> {
    let thread = Builder::new().name(format!("pollux-worker{number}")).spawn(serve);
    let thread = thread.map_err(|why| UpError::Worker(why.to_string()))?;
    alive.threads().push(thread);
    Ok(())
}

impl Brief {
    /// The first worker's thread.
    fn primary(self, plan: Plan, secondaries: &[Sender<Host>], inbox: Inbox) {
        match self.open(plan, secondaries) {
            Ok(mut host) => self.serve(&mut host, inbox),
            Err(why) => drop(self.tell.send(Err(why))),
        }
    }

    /// Another's. Where the first one has nothing for it, that one says why.
    fn secondary(self, number: usize, given: &Receiver<Host>, inbox: Inbox) {
        if let Err(why) = self.stay(number) {
            return drop(self.tell.send(Err(why)));
        }
        if let Ok(mut host) = given.recv() {
            self.serve(&mut host, inbox);
        }
    }

    /// Opens the interface, gives the other workers what they have of it, and waits until it is up.
    fn open(&self, plan: Plan, secondaries: &[Sender<Host>]) -> Result<Host, UpError> {
        let Plan { opened, settings, stack, timeout, .. } = plan;
        self.stay(0)?;
        let hosts = Host::for_workers(self.clock.now(), opened, &settings, &stack, seed);
        let (mut host, others) = hosts.map_err(UpError::Device)?;
        for (secondary, host) in secondaries.iter().zip(others) {
            // Who is gone has said why.
            let _ = secondary.send(host);
        }
        let end = self.clock.now() + timeout;
        while !host.is_up(&settings) {
            let now = self.clock.now();
            if !host.step(now) {
                std::thread::yield_now();
            }
            let is_wanted = self.alive.strong_count() > 0;
            if now >= end || host.failed().is_some() || !is_wanted {
                let why = host.not_up();
                disconnect(&mut host, self.clock);
                return Err(why);
            }
        }
        Ok(host)
    }

    fn serve(self, host: &mut Host, inbox: Inbox) {
        let Self { alive, doorbells, clock, config, user_timeout, tell } = self;
        let worker = Worker::new((host, clock), (doorbells, inbox), alive, (config, user_timeout));
        let _ = tell.send(Ok(()));
        drop(tell);
        worker.run();
    }

    /// Pins this thread, if it is to be.
    fn stay(&self, number: usize) -> Result<(), UpError> {
        let Some(&core) = self.config.cores.get(number) else { return Ok(()) };
        let cores = core_affinity::get_core_ids().unwrap_or_default();
        let known = cores.into_iter().find(|one| one.id == core);
        let is_pinned = known.is_some_and(core_affinity::set_for_current);
        is_pinned.then_some(()).ok_or(UpError::Core(core))
    }
}
