//! What befalls a world: troubles, each with its beginning and its end, drawn from an RNG.

use crate::network::Weather;
use crate::world::World;
use pollux_verbs::rng::SeededRng;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// A trouble.
#[derive(Clone, Debug)]
pub enum Trouble {
    /// A node dies, and begins anew when it is over.
    Dead { node: usize, has_new_qpn: bool, forgets_qpns: bool },
    /// A queue pair fails.
    QueuePair { node: usize, which: usize },
    /// A node's device makes no queue pairs.
    NoQueuePairs { node: usize },
    /// A node's cable is out.
    Cable { node: usize },
    /// A node's interface is taken down.
    Closed { node: usize },
    /// The administrator is silent.
    SaSilence,
    /// Another subnet manager takes over, which knows nothing.
    NewManager,
    /// Frames, management datagrams or both get lost, doubled and late.
    Weather { frames: bool, mads: bool, how_bad: Weather },
}

impl Trouble {
    /// Any one, and how long it lasts.
    pub fn any(rng: &mut SeededRng, nodes: usize) -> (Self, Duration) {
        let node = rng.below(nodes as u64) as usize;
        let trouble = match rng.below(10) {
            0 | 1 => Self::Dead {
                node,
                has_new_qpn: rng.happens(500_000),
                forgets_qpns: rng.happens(500_000),
            },
            2 => Self::QueuePair { node, which: rng.below(nodes as u64) as usize },
            3 => Self::NoQueuePairs { node },
            4 => Self::Cable { node },
            5 => Self::Closed { node },
            6 => Self::SaSilence,
            7 => Self::NewManager,
            _ => Self::Weather {
                frames: rng.happens(700_000),
                mads: rng.happens(700_000),
                how_bad: storm(rng),
            },
        };
        let long = if rng.happens(200_000) { 120 } else { 20 };
        (trouble, rng.duration(long * SECOND))
    }

    pub fn begin(&self, world: &mut World) {
        match *self {
            Self::Dead { node, has_new_qpn, forgets_qpns } => {
                world.kill(node, forgets_qpns);
                world.nodes[node].config.qpn.0 += u32::from(has_new_qpn);
            }
            Self::QueuePair { node, which } => world.fail(node, which),
            Self::NoQueuePairs { node } => {
                world.nodes[node].port_driver.is_out_of_queue_pairs = true;
            }
            Self::Cable { node } => world.set_cable(node, false),
            Self::Closed { node } => world.set_open(node, false),
            Self::SaSilence => world.is_sa_silent = true,
            Self::NewManager => world.restart_manager(),
            Self::Weather { frames, mads, how_bad } => {
                world.weather = if frames { how_bad } else { Weather::CALM };
                world.mad_weather = if mads { how_bad } else { Weather::CALM };
            }
        }
    }

    pub fn end(&self, world: &mut World) {
        match *self {
            Self::Dead { node, .. } if world.nodes[node].interface.is_none() => world.start(node),
            Self::Dead { .. } | Self::QueuePair { .. } | Self::NewManager => {}
            Self::NoQueuePairs { node } => {
                world.nodes[node].port_driver.is_out_of_queue_pairs = false;
            }
            Self::Cable { node } => world.set_cable(node, true),
            Self::Closed { node } => world.set_open(node, true),
            Self::SaSilence => world.is_sa_silent = false,
            Self::Weather { .. } => {
                (world.weather, world.mad_weather) = (Weather::CALM, Weather::CALM);
            }
        }
    }
}

fn storm(rng: &mut SeededRng) -> Weather {
    Weather {
        lost: rng.below(400_000) as u32,
        doubled: rng.below(200_000) as u32,
        late: rng.duration(3 * SECOND),
    }
}
