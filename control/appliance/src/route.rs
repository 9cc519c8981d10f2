//! `pollux route`: changes the routes of a running node that are not in its configuration file, and
//! shows the route to an address.

use crate::asking::{Wait, ask};
use crate::output::print_value;
use clap::{Args, Subcommand};
use pollux_node::admin::request::{AdminRequest, RouteRequest, RouteVerb};
use pollux_node::admin::route::RouteDecision;
use pollux_node::admin::rows::ChangeStatus;
use serde::de::DeserializeOwned;
use std::error::Error;
use std::net::IpAddr;
use std::path::PathBuf;

#[derive(Args)]
pub struct RouteArguments {
    #[command(subcommand)]
    command: RouteCommand,
    /// Socket of the node
    #[arg(long, value_name = "PATH", global = true)]
    socket: Option<PathBuf>,
    /// Routing domain [default: default]
    #[arg(long, value_name = "NAME", global = true)]
    domain: Option<String>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(flatten)]
    wait: Wait,
}

/// Routes that are added here come before those of the configuration to the same prefix, and last
/// until they are removed or the node ends; `pollux reload` leaves them alone.
#[derive(Subcommand)]
enum RouteCommand {
    /// Add a route that a reload leaves alone
    Add(NewRoute),
    /// Add a route, or replace the one to the same prefix that `pollux route` made
    Replace(NewRoute),
    /// Remove a route that `pollux route` made
    Del {
        /// Prefix of its destinations, as 10.1.0.0/16
        to: String,
    },
    /// Show the route to an address, with the reason
    Get {
        /// The destination
        address: IpAddr,
    },
}

/// A route in words.
#[derive(Args)]
struct NewRoute {
    /// Its destinations: a prefix as 10.1.0.0/16, an address, or `default` for all
    to: String,
    /// `via` and gateways, which share the flows; or `blackhole` to drop silently; or
    /// `unreachable` or `prohibit` to drop with that ICMP error
    #[arg(value_name = "via GATEWAY[,GATEWAY]|blackhole|unreachable|prohibit", required = true)]
    target: Vec<String>,
}

impl NewRoute {
    fn request(&self, verb: RouteVerb, domain: Option<String>) -> Result<RouteRequest, String> {
        let target = self.target.iter().map(String::as_str);
        let words: Vec<_> = [self.to.as_str()].into_iter().chain(target).collect();
        let (to, kind, via) = match words[..] {
            [to, "via", gateways] => (to, None, addresses(gateways)?),
            // The second pattern, kind first, is the order of ip(8).
            [to, kind @ ("blackhole" | "unreachable" | "prohibit")]
            | [kind @ ("blackhole" | "unreachable" | "prohibit"), to] => {
                (to, Some(kind.into()), Vec::new())
            }
            _ => {
                return Err(format!(
                    "{:?} is no target of a route; write via GATEWAY[,GATEWAY], blackhole, \
                     unreachable or prohibit",
                    words[1..].join(" ")
                ));
            }
        };
        Ok(RouteRequest { verb, to: to.into(), via, kind, domain })
    }
}

fn addresses(text: &str) -> Result<Vec<IpAddr>, String> {
    let address = |text: &str| {
        text.parse().map_err(|_| format!("{text:?} is not an IP address; write via 10.0.0.2"))
    };
    text.split(',').map(address).collect()
}

pub fn route(arguments: &RouteArguments) -> Result<(), Box<dyn Error>> {
    let domain = arguments.domain.clone();
    let request = match &arguments.command {
        RouteCommand::Add(route) => route.request(RouteVerb::Add, domain)?,
        RouteCommand::Replace(route) => route.request(RouteVerb::Replace, domain)?,
        RouteCommand::Del { to } => {
            let (verb, to) = (RouteVerb::Del, to.clone());
            RouteRequest { verb, to, via: Vec::new(), kind: None, domain }
        }
        RouteCommand::Get { address } => {
            let decision = arguments.ask(&AdminRequest::RouteTo { address: *address, domain })?;
            return print_value(arguments.json, &decision, text);
        }
    };
    let changes: Vec<ChangeStatus> = arguments.ask(&AdminRequest::Route(request))?;
    print_value(arguments.json, changes, |changes| {
        changes.iter().map(|one| format!("{}\n", one.change)).collect()
    })
}

impl RouteArguments {
    fn ask<T: DeserializeOwned>(&self, request: &AdminRequest) -> Result<T, Box<dyn Error>> {
        let socket = self.socket.as_ref();
        let socket = socket.ok_or("no socket given; name the node's socket with --socket PATH")?;
        Ok(ask(socket, self.wait, request)?)
    }
}

/// The verdict, a line for each next hop, then the reason.
fn text(decision: &RouteDecision) -> String {
    let RouteDecision { address, verdict, route, why, .. } = decision;
    let mut lines = format!("{address}: {verdict}\n");
    for hop in route.iter().flat_map(|route| &route.via) {
        lines += &match hop.gateway {
            Some(gateway) => format!("  via {gateway} at {}\n", hop.interface),
            None => format!("  on the link of {}\n", hop.interface),
        };
    }
    lines + &format!("  since {why}\n")
}
