//! Two routers with four links between them and a network of its own behind each, whose routes
//! are a routing daemon's business.

use crate::nodes::{NodeInNamespace, until};
use pollux_node::admin::client::Client;
use pollux_node::admin::request::AdminRequest;
use pollux_node::fabric::Embedded;
use std::time::Duration;

/// Links between the two.
pub const LINKS: usize = 4;

/// The two routers.
pub struct Pair {
    pub left: NodeInNamespace,
    pub right: NodeInNamespace,
    fabric: Embedded,
}

/// One of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Left,
    Right,
}

impl Side {
    /// The last number of its addresses.
    pub const fn nth(self) -> u8 {
        match self {
            Self::Left => 1,
            Self::Right => 2,
        }
    }

    pub const fn other(self) -> Self {
        match self {
            Self::Left => Self::Right,
            Self::Right => Self::Left,
        }
    }
}

impl Pair {
    /// Starts both. Link N has 10.0.N.0/24 and 2001:db8:N::/64, and the networks behind are those
    /// of 10.1.0.1/16 and fd00:1::1/64, 10.2.0.1/16 and fd00:2::1/64.
    pub fn start(test: &str) -> Option<Self> {
        let fabric = Embedded::start("single:10").expect("it starts");
        let start = |side: Side| {
            let nth = side.nth();
            let host = |link: usize| fabric.port(&host(side, link));
            let mut config = String::from("[router]\nkernel_table = 254\n");
            for link in 1..=LINKS {
                config += &format!(
                    "[interface.ib{link}]\ndevice = {:?}\nshadow = \"ib{link}\"\n\
                     address = [\"10.0.{link}.{nth}/24\", \"2001:db8:{link}::{nth}/64\"]\n",
                    host(link)
                );
            }
            config += &format!(
                "[interface.ib5]\ndevice = {:?}\nshadow = \"ib5\"\n\
                 address = [\"10.{nth}.0.1/16\", \"fd00:{nth}::1/64\"]\n",
                host(LINKS + 1)
            );
            NodeInNamespace::start(test, &config)
        };
        let (left, right) = (start(Side::Left)?, start(Side::Right)?);
        for node in [&left, &right] {
            node.wait_for_links(LINKS + 1);
        }
        Some(Self { left, right, fabric })
    }

    pub const fn node(&self, side: Side) -> &NodeInNamespace {
        match side {
            Side::Left => &self.left,
            Side::Right => &self.right,
        }
    }

    /// Pulls the cable of a link at one side; `meanwhile` gets the pair; then plugs it in.
    pub fn unplug(&self, side: Side, link: usize, meanwhile: impl FnOnce()) {
        let client = Client::new(&self.fabric.path(), Duration::from_secs(60));
        let rule = format!("{}:1/down", host(side, link));
        let number =
            client.ask::<u32>(&AdminRequest::AddFault(rule), &mut |_, _| false).expect("a rule");
        self.node(side).wait_for_links(LINKS);
        meanwhile();
        client
            .ask::<u32>(&AdminRequest::RemoveFault(number), &mut |_, _| false)
            .expect("it is there");
        self.node(side).wait_for_links(LINKS + 1);
    }

    /// Waits until both nodes have the routes that `ip` shows.
    pub fn wait_for_equal_routes(&self, after: &str) {
        self.left.wait_for_equal_routes(&format!("left, {after}"));
        self.right.wait_for_equal_routes(&format!("right, {after}"));
    }

    /// Waits until the left node has a route of this source with so many paths.
    pub fn wait_for_paths(&self, to: &str, source: &str, paths: usize, after: &str) {
        until(&format!("{paths} paths to {to} by {source} after {after}"), || {
            let found = self.left.route(to);
            let is_it = match &found[..] {
                [(by, via)] => by == source && via.len() == paths,
                [] => paths == 0,
                _ => false,
            };
            if is_it { Ok(()) } else { Err(format!("{found:?}")) }
        });
        self.wait_for_equal_routes(after);
    }
}

fn host(side: Side, link: usize) -> String {
    let first = if side == Side::Left { 0 } else { LINKS + 1 };
    format!("host{}", first + link)
}
