//! A link in virtual time: frames on their way, lost, doubled and overtaken by the seed.

use crate::node::Node;
use pollux_control::frame::{Frame, To};
use pollux_verbs::rng::SeededRng;
use pollux_verbs::time::Time;
use pollux_wire::ip::ipoib::EtherType;
use std::collections::BTreeMap;
use std::time::Duration;

/// What goes wrong on the link, in a million frames.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub loss: u32,
    pub duplication: u32,
    /// How much later than others a frame may come.
    pub delay: Duration,
}

pub struct World {
    pub now: Time,
    pub nodes: Vec<Node>,
    pub faults: Faults,
    /// Frames that were sent to groups.
    pub to_groups: usize,
    /// Every frame that was sent.
    pub frames: Vec<Frame>,
    rng: SeededRng,
    travelling: BTreeMap<(Time, u64), (usize, EtherType, Vec<u8>)>,
    sent: u64,
}

impl World {
    pub fn new(seed: u64, faults: Faults, nodes: Vec<Node>) -> Self {
        let (rng, travelling) = (SeededRng::new(seed), BTreeMap::new());
        let (now, sent) = (Time::START, 0);
        Self { now, nodes, faults, to_groups: 0, frames: Vec::new(), rng, travelling, sent }
    }

    /// Lets everything happen that is due until `end`.
    pub fn run_until(&mut self, end: Time) {
        loop {
            for from in 0..self.nodes.len() {
                for frame in self.nodes[from].drain(self.now) {
                    self.send(from, &frame);
                }
            }
            let due = self.nodes.iter().filter_map(Node::poll_timeout);
            let arrivals = self.travelling.keys().next().map(|&(at, _)| at);
            let Some(next) = due.chain(arrivals).min().filter(|next| *next <= end) else { break };
            self.now = self.now.max(next);
            while let Some(entry) = self.travelling.first_entry() {
                if entry.key().0 > self.now {
                    break;
                }
                let (to, ether_type, packet) = entry.remove();
                self.nodes[to].receive(self.now, ether_type, &packet);
            }
            for node in &mut self.nodes {
                node.handle_timeout(self.now);
            }
        }
        self.now = end;
    }

    pub fn run_for(&mut self, time: Duration) {
        self.run_until(self.now + time);
    }

    fn send(&mut self, from: usize, frame: &Frame) {
        self.frames.push(frame.clone());
        self.to_groups += usize::from(matches!(frame.to, To::Group(_)));
        for to in 0..self.nodes.len() {
            let is_receiver = match frame.to {
                To::Group(id) => to != from && self.nodes[to].groups.contains(&id),
                To::Link(address) => self.nodes[to].link.is_same_interface(&address),
                To::Neighbor(_) | To::Route => panic!("the node resolves these"),
            };
            if is_receiver && !self.rng.happens(self.faults.loss) {
                let copies = 1 + u64::from(self.rng.happens(self.faults.duplication));
                for _ in 0..copies {
                    let delay = self.rng.duration(self.faults.delay);
                    let arrival = self.now + Duration::from_micros(2) + delay;
                    self.sent += 1;
                    let packet = (to, frame.ether_type, frame.packet.clone());
                    self.travelling.insert((arrival, self.sent), packet);
                }
            }
        }
    }
}
