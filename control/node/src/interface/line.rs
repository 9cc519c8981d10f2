//! What the primary worker of an interface and one of its secondary workers say to each other: a ring each way, and a few
//! words that both see.
//!
//! ```text
//!   primary worker: WorkerGroup    --orders: what control wants, what it knows-->    secondary worker
//!                 <--told: news of connections, packets, misses--
//! ```
//!
//! No order is lost, and no news of a connection: what a ring has no room for waits in front of it
//! in its order, up to a limit, beyond which the other side is taken for lost. A packet that finds
//! no room is a counted drop.
//!
//! What a secondary worker has no way for goes up, and is sent by the primary worker; so when the way of a secondary worker changes,
//! what it sends then may overtake what it sent before.

use pollux_control::interface::{Action, ConnectionKey, ConnectionNews, Facts, From};
use pollux_mem::spsc::{self, Consumer, Producer};
use pollux_verbs::VerbsError;
use pollux_wire::ip::ipoib::EtherType;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Orders in the ring.
const ORDERS_MAX: usize = 1024;
/// Packets and news in the other.
const TOLD_MAX: usize = 256;
/// What waits for room, either way: more than all peers and connections give rise to at once.
const WAITING_MAX: usize = 65_536;

/// What a secondary worker is to do, or to know.
#[derive(Debug)]
pub(super) enum Order {
    Act(Action),
    Know(Arc<Facts>),
}

/// What a secondary worker has for control.
#[derive(Debug)]
pub(super) enum Told {
    News(ConnectionKey, ConnectionNews),
    /// A packet that no socket took, for one of our addresses or for control.
    Packet(EtherType, Vec<u8>, From),
    /// One that no socket listens for.
    Unheard(Vec<u8>),
    /// One that has no way yet.
    Miss(Vec<u8>),
    TooBig(Vec<u8>, u32),
    /// Packets go to this next hop.
    Use(IpAddr),
}

/// What both sides see.
#[derive(Debug, Default)]
struct Shared {
    /// The primary worker wants an end, or is gone.
    is_over: AtomicBool,
    /// The secondary worker is gone, and all that it had at the device.
    is_gone: AtomicBool,
    failure: OnceLock<VerbsError>,
    /// Orders that were carried out. Written after the two below, and read before them.
    done: AtomicU64,
    is_idle: AtomicBool,
    has_sent: AtomicBool,
}

/// The primary worker's end.
pub(super) struct PrimaryEnd {
    orders: Producer<Order>,
    waiting: VecDeque<Order>,
    told: Consumer<Told>,
    given: u64,
    /// Of those that were given, the last that others wait for.
    urgent: u64,
    /// The secondary worker was given something since that was asked.
    has_given: bool,
    shared: Arc<Shared>,
}

/// The secondary worker's end.
pub(super) struct SecondaryEnd {
    orders: Consumer<Order>,
    told: Producer<Told>,
    waiting: VecDeque<(ConnectionKey, ConnectionNews)>,
    done: u64,
    /// What the primary worker was shown last: it looks at the same line of the cache.
    shown: Option<(bool, bool, u64)>,
    /// The primary worker was told something since that was asked.
    has_told: bool,
    shared: Arc<Shared>,
}

/// Both ends.
pub(super) fn line() -> (PrimaryEnd, SecondaryEnd) {
    let (orders, ordered) = spsc::ring(ORDERS_MAX).expect("a power of two");
    let (teller, told) = spsc::ring(TOLD_MAX).expect("a power of two");
    let shared = Arc::new(Shared::default());
    let waiting = VecDeque::new();
    let primary = PrimaryEnd {
        orders,
        waiting,
        told,
        given: 0,
        urgent: 0,
        has_given: false,
        shared: Arc::clone(&shared),
    };
    let secondary = SecondaryEnd {
        orders: ordered,
        told: teller,
        waiting: VecDeque::new(),
        done: 0,
        shown: None,
        has_told: false,
        shared,
    };
    (primary, secondary)
}

impl PrimaryEnd {
    /// Gives an order.
    pub(super) fn give(&mut self, order: Order) {
        self.waiting.push_back(order);
        self.given += 1;
        self.has_given = true;
        self.fill_ring();
    }

    /// Gives an order that somebody waits for to be carried out.
    pub(super) fn give_urgent(&mut self, order: Order) {
        self.give(order);
        self.urgent = self.given;
    }

    /// Whether it has yet to be.
    pub(super) fn is_urgent(&self) -> bool {
        self.shared.done.load(Ordering::Acquire) < self.urgent && !self.is_gone()
    }

    /// Whether the secondary worker was given anything since this was asked: it may sleep.
    pub(super) const fn take_given(&mut self) -> bool {
        std::mem::replace(&mut self.has_given, false)
    }

    /// Fills the ring with what waits for room.
    pub(super) fn fill_ring(&mut self) {
        while let Some(order) = self.waiting.pop_front() {
            if let Err(order) = self.orders.push(order) {
                return self.waiting.push_front(order);
            }
        }
    }

    /// The next thing that the secondary worker has told.
    pub(super) fn poll(&mut self) -> Option<Told> {
        self.told.pop()
    }

    /// Why the secondary worker is none any more, if that is so.
    pub(super) fn check(&self) -> Result<(), VerbsError> {
        let lost = |why| Err(VerbsError::Lost { what: "worker", why });
        match self.shared.failure.get() {
            Some(failure) => Err(failure.clone()),
            None if self.is_gone() && !self.is_ended() => lost("it has ended before the interface"),
            None if self.waiting.len() > WAITING_MAX => lost("it does nothing that it is told"),
            None => Ok(()),
        }
    }

    /// Whether it has done all that it was told, and its station is stopped.
    pub(super) fn is_idle(&self) -> bool {
        self.has_done() && self.shared.is_idle.load(Ordering::Relaxed) || self.is_gone()
    }

    /// Whether all that it was given to be sent is sent, or with control.
    pub(super) fn has_sent(&self) -> bool {
        self.has_done() && self.shared.has_sent.load(Ordering::Relaxed) && self.is_heard()
    }

    /// Whether all that it has told was heard.
    pub(super) fn is_heard(&self) -> bool {
        self.told.is_empty()
    }

    /// Whether nothing is left of it at the device.
    pub(super) fn is_gone(&self) -> bool {
        self.shared.is_gone.load(Ordering::Acquire)
    }

    /// It is to end.
    pub(super) fn end(&self) {
        self.shared.is_over.store(true, Ordering::Release);
    }

    fn is_ended(&self) -> bool {
        self.shared.is_over.load(Ordering::Relaxed)
    }

    fn has_done(&self) -> bool {
        self.shared.done.load(Ordering::Acquire) == self.given
    }
}

impl Drop for PrimaryEnd {
    fn drop(&mut self) {
        self.end();
    }
}

impl SecondaryEnd {
    /// The next order.
    pub(super) fn poll(&mut self) -> Option<Order> {
        let order = self.orders.pop()?;
        self.done += 1;
        Some(order)
    }

    /// News of connections, which reach control in their order.
    pub(super) fn tell_news(
        &mut self,
        news: impl Iterator<Item = (ConnectionKey, ConnectionNews)>,
    ) {
        self.waiting.extend(news);
        while let Some((key, news)) = self.waiting.pop_front() {
            if let Err(Told::News(key, news)) = self.told.push(Told::News(key, news)) {
                return self.waiting.push_front((key, news));
            }
            self.has_told = true;
        }
    }

    /// Whether the primary worker was told anything since this was asked: it may sleep.
    pub(super) const fn take_told(&mut self) -> bool {
        std::mem::replace(&mut self.has_told, false)
    }

    /// Tells anything else; `false` if there is no room for it.
    pub(super) fn tell(&mut self, told: Told) -> bool {
        let is_told = self.waiting.is_empty() && self.told.push(told).is_ok();
        self.has_told |= is_told;
        is_told
    }

    /// Whether nothing waits for room.
    pub(super) fn has_told(&self) -> bool {
        self.waiting.is_empty()
    }

    /// How far it is, once all orders that were taken are carried out.
    pub(super) fn show(&mut self, is_idle: bool, has_sent: bool) {
        let shown = Some((is_idle, has_sent, self.done));
        if std::mem::replace(&mut self.shown, shown) == shown {
            return;
        }
        self.shared.is_idle.store(is_idle, Ordering::Relaxed);
        self.shared.has_sent.store(has_sent, Ordering::Relaxed);
        self.shared.done.store(self.done, Ordering::Release);
    }

    /// It cannot go on, for this reason.
    pub(super) fn fail(&self, why: &VerbsError) {
        let _ = self.shared.failure.set(why.clone());
    }

    /// Whether the primary worker wants an end, or is gone, or seems to be.
    pub(super) fn is_over(&self) -> bool {
        self.shared.is_over.load(Ordering::Acquire) || self.waiting.len() > WAITING_MAX
    }
}

impl Drop for SecondaryEnd {
    fn drop(&mut self) {
        self.shared.is_gone.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const NOBODY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

    fn key(order: &Order) -> ConnectionKey {
        match order {
            Order::Act(Action::Disconnect { connection }) => *connection,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn orders_and_news_come_whole_and_in_order_however_full_the_rings_are() {
        let (mut primary, mut secondary) = line();
        let count = 3 * ORDERS_MAX as u64;
        for connection in (0..count).map(ConnectionKey) {
            primary.give(Order::Act(Action::Disconnect { connection }));
            secondary.tell_news([(connection, ConnectionNews::Ended)].into_iter());
        }
        assert!(!secondary.tell(Told::Use(NOBODY)), "it finds no room, and overtakes nothing");
        let (mut ordered, mut told) = (Vec::new(), Vec::new());
        while (ordered.len() as u64) < count {
            primary.fill_ring();
            ordered.extend(secondary.poll().as_ref().map(key));
            secondary.tell_news(std::iter::empty());
            while let Some(news) = primary.poll() {
                let Told::News(key, ConnectionNews::Ended) = news else { panic!("{news:?}") };
                told.push(key);
            }
        }
        let all: Vec<_> = (0..count).map(ConnectionKey).collect();
        assert_eq!((&ordered, &told), (&all, &all));
        assert!(secondary.tell(Told::Use(NOBODY)) && primary.check().is_ok());
    }

    #[test]
    fn a_secondary_is_idle_when_it_has_carried_out_all_commands() {
        let (mut primary, mut secondary) = line();
        secondary.show(true, true);
        assert!(primary.is_idle() && primary.has_sent());
        primary.give(Order::Know(Arc::default()));
        assert!(!primary.is_idle() && !primary.has_sent(), "it was idle before it was told that");
        assert!(secondary.poll().is_some());
        secondary.show(false, true);
        assert!(!primary.is_idle() && primary.has_sent());
        assert!(
            secondary.tell(Told::Use(NOBODY)) && !primary.has_sent(),
            "something is on its way here"
        );
    }

    #[test]
    fn whoever_does_nothing_for_too_long_is_lost() {
        let (mut primary, mut secondary) = line();
        let orders = ORDERS_MAX + WAITING_MAX;
        (0..orders).for_each(|_| primary.give(Order::Know(Arc::default())));
        assert!(primary.check().is_ok());
        primary.give(Order::Know(Arc::default()));
        assert!(primary.check().unwrap_err().to_string().contains("nothing that it is told"));
        let news = |_| (ConnectionKey(1), ConnectionNews::Used { received: true });
        secondary.tell_news((0..TOLD_MAX + WAITING_MAX).map(news));
        assert!(!secondary.is_over());
        secondary.tell_news([news(0)].into_iter());
        assert!(secondary.is_over());
    }

    #[test]
    fn each_side_sees_that_the_other_is_gone() {
        let (primary, secondary) = line();
        drop(secondary);
        assert!(primary.is_gone() && primary.check().is_err());
        primary.end();
        assert!(primary.check().is_ok(), "it was to end");
        let (primary, secondary) = line();
        assert!(!secondary.is_over());
        drop(primary);
        assert!(secondary.is_over());
        let (primary, secondary) = line();
        secondary.fail(&VerbsError::Lost { what: "adapter", why: "it is broken" });
        drop(secondary);
        assert!(matches!(primary.check(), Err(VerbsError::Lost { what: "adapter", .. })));
    }
}
