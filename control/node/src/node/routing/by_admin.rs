//! Routes of administrators, by `pollux route`: they last until they are removed or the node ends.
//!
//! Why such a route takes precedence over a configured route to the same prefix: an administrator
//! can take a prefix out of use at once, and restore it later, without editing the file. The file
//! does not have these routes, so a reload does not change them.

use crate::admin::request::{RouteRequest, RouteVerb};
use crate::config::{AddressSetting, DEFAULT_DOMAIN, NodeConfig, Prefix, RouteKind, RouteSettings};
use std::collections::BTreeMap;
use std::net::IpAddr;

const ADMIN_ROUTES_MAX: usize = 65_536;

#[derive(Default)]
pub(in crate::node) struct AdminRoutes {
    routes: BTreeMap<(String, Prefix), RouteSettings>,
    version: u64,
}

impl AdminRoutes {
    /// The routes, in the order of their prefixes.
    pub(super) fn routes(&self) -> impl Iterator<Item = &RouteSettings> {
        self.routes.values()
    }

    /// A number that changes whenever the routes change.
    pub(super) const fn version(&self) -> u64 {
        self.version
    }

    /// Makes a change. Returns a text about it, and one about its effect on a configured route.
    pub(in crate::node) fn change(
        &mut self,
        request: &RouteRequest,
        config: &NodeConfig,
    ) -> Result<Vec<String>, String> {
        let RouteRequest { verb, to, via, kind, domain } = request;
        let to = destinations(to, via).ok_or_else(|| {
            format!("{to:?} is not a prefix; write 10.1.0.0/16, an address, or default")
        })?;
        let domain = domain.as_deref().unwrap_or(DEFAULT_DOMAIN);
        if domain != DEFAULT_DOMAIN && !config.domains.contains_key(domain) {
            return Err(format!(
                "there is no domain {domain}; write [domain.{domain}] in the file"
            ));
        }
        let mut all = config.route.iter();
        let configured = all.find(|route| (&*route.domain, route.to) == (domain, to));
        let changes = match verb {
            RouteVerb::Del => self.remove(domain, to, configured)?,
            RouteVerb::Add | RouteVerb::Replace => {
                if let Some((own, name)) = own_gateway(via, domain, config) {
                    return Err(format!("{own} is an address of this node, at {name}"));
                }
                let kind = kind.as_deref().unwrap_or("unicast");
                let kind = RouteKind::named(kind).ok_or_else(|| {
                    format!(
                        "{kind:?} is no kind of route; write unicast, blackhole, unreachable or \
                         prohibit"
                    )
                })?;
                let (domain, via, next_domain) = (domain.into(), via.clone(), None);
                let route = RouteSettings { domain, to, via, next_domain, kind };
                self.set(*verb, route, configured)?
            }
        };
        self.version += 1;
        Ok(changes)
    }

    fn set(
        &mut self,
        verb: RouteVerb,
        route: RouteSettings,
        configured: Option<&RouteSettings>,
    ) -> Result<Vec<String>, String> {
        if let Some((_, reason)) = route.fault() {
            return Err(reason.replace("write via = [\"...\"]", "write via GATEWAY"));
        }
        let key = (route.domain.clone(), route.to);
        let known = self.routes.get(&key);
        if let (RouteVerb::Add, Some(known)) = (verb, known) {
            return Err(format!(
                "there is a route {known} already; change it with `pollux route replace`"
            ));
        }
        if known.is_none() && self.routes.len() >= ADMIN_ROUTES_MAX {
            return Err(format!(
                "there are {ADMIN_ROUTES_MAX} routes of `pollux route`; remove some, or write \
                 [[route]] in the configuration"
            ));
        }
        let mut changes = vec![format!("route: {route}")];
        changes.extend(configured.map(|known| {
            format!("route: {known}, of the configuration, is inactive until this one is removed")
        }));
        self.routes.insert(key, route);
        Ok(changes)
    }

    fn remove(
        &mut self,
        domain: &str,
        to: Prefix,
        configured: Option<&RouteSettings>,
    ) -> Result<Vec<String>, String> {
        match (self.routes.remove(&(domain.into(), to)), configured) {
            (Some(_), configured) => {
                let mut changes = vec![format!("route: remove {to}")];
                changes.extend(
                    configured.map(|known| format!("route: {known}, of the configuration, again")),
                );
                Ok(changes)
            }
            (None, Some(_)) => Err(format!(
                "the route to {to} is of the configuration file; remove it there, then run `pollux \
                 reload`; or put another one before it with `pollux route add`"
            )),
            (None, None) => Err(format!(
                "no route to {to} was added by `pollux route`; list them with `pollux show routes`"
            )),
        }
    }
}

/// The destinations of a route as an administrator writes them: a prefix, an address, or `default`
/// in the family of the gateways.
fn destinations(text: &str, via: &[IpAddr]) -> Option<Prefix> {
    if text == "default" {
        let is_v6 = via.first().is_some_and(IpAddr::is_ipv6);
        return Prefix::parse(if is_v6 { "::/0" } else { "0.0.0.0/0" });
    }
    let host = || text.parse().ok().map(|ip: IpAddr| format!("{ip}/{}", bits(ip)));
    Prefix::parse(text).or_else(|| Prefix::parse(&host()?))
}

const fn bits(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 32 } else { 128 }
}

/// A gateway that is a configured address of an interface in this domain, with the interface's
/// name.
fn own_gateway<'a>(
    via: &[IpAddr],
    domain: &str,
    config: &'a NodeConfig,
) -> Option<(IpAddr, &'a str)> {
    let of_domain = config.interfaces.iter().filter(|(_, one)| one.domain == domain);
    let addresses = of_domain.flat_map(|(name, one)| one.address.iter().map(move |it| (name, it)));
    addresses.into_iter().find_map(|(name, address)| match address {
        AddressSetting::Fixed(own) if via.contains(&own.ip) => Some((own.ip, name.as_str())),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(verb: RouteVerb, to: &str, via: &[&str]) -> RouteRequest {
        let via = via.iter().map(|ip| ip.parse().expect("an address")).collect();
        RouteRequest { verb, to: to.into(), via, kind: None, domain: None }
    }

    #[test]
    fn a_route_is_added_once_and_replaced_and_removed() {
        let (mut routes, config) = (AdminRoutes::default(), NodeConfig::default());
        let mut change = |verb, via| routes.change(&request(verb, "10.1.0.0/16", via), &config);
        let gateway = &["10.0.0.2"][..];
        assert_eq!(change(RouteVerb::Add, gateway).unwrap(), ["route: 10.1.0.0/16 via 10.0.0.2"]);
        let message = change(RouteVerb::Add, gateway).unwrap_err();
        assert!(message.contains("already; change it with `pollux route replace`"), "{message}");
        change(RouteVerb::Replace, &["10.0.0.3"]).unwrap();
        assert_eq!(change(RouteVerb::Del, &[]).unwrap(), ["route: remove 10.1.0.0/16"]);
        let message = change(RouteVerb::Del, &[]).unwrap_err();
        assert!(message.starts_with("no route to 10.1.0.0/16 was added by"), "{message}");
        assert!(change(RouteVerb::Add, &[]).unwrap_err().ends_with("write via GATEWAY"));
        assert!(change(RouteVerb::Add, &["fd00::1"]).unwrap_err().contains("of another family"));
        assert_eq!((routes.routes().count(), routes.version()), (0, 3));
    }

    #[test]
    fn destinations_are_prefixes_addresses_or_all() {
        let (mut routes, config) = (AdminRoutes::default(), NodeConfig::default());
        let mut add = |to, via| {
            routes.change(&request(RouteVerb::Add, to, &[via]), &config).expect("a route").remove(0)
        };
        assert_eq!(add("default", "10.0.0.2"), "route: 0.0.0.0/0 via 10.0.0.2");
        assert_eq!(add("default", "fd00::2"), "route: ::/0 via fd00::2");
        assert_eq!(add("10.1.0.7", "10.0.0.2"), "route: 10.1.0.7/32 via 10.0.0.2");
        assert_eq!(add("fd01::7", "fd00::2"), "route: fd01::7/128 via fd00::2");
        let wrong = routes.change(&request(RouteVerb::Add, "all", &["10.0.0.2"]), &config);
        assert!(wrong.unwrap_err().ends_with("an address, or default"));
    }

    #[test]
    fn a_gateway_is_no_address_of_the_node() {
        let text = "[interface.ib0]\ndevice = 'null:'\naddress = ['10.0.0.1/24']\n";
        let config = NodeConfig::read("test", text).expect("it is valid");
        let mut routes = AdminRoutes::default();
        let own = request(RouteVerb::Add, "10.1.0.0/16", &["10.0.0.2", "10.0.0.1"]);
        let message = routes.change(&own, &config).unwrap_err();
        assert_eq!(message, "10.0.0.1 is an address of this node, at ib0");
        assert_eq!(routes.routes().count(), 0);
    }

    #[test]
    fn there_are_only_so_many_routes() {
        let (mut routes, config) = (AdminRoutes::default(), NodeConfig::default());
        for nth in 0..ADMIN_ROUTES_MAX {
            let to = format!("10.{}.{}.0/24", nth >> 8, nth & 255);
            routes.change(&request(RouteVerb::Add, &to, &["10.0.0.2"]), &config).expect("space");
        }
        let message = routes.change(&request(RouteVerb::Add, "fd00::/8", &["fd00::1"]), &config);
        assert!(message.unwrap_err().starts_with("there are 65536 routes of `pollux route`"));
        routes.change(&request(RouteVerb::Replace, "10.9.9.0/24", &["10.0.0.3"]), &config).unwrap();
    }
}
