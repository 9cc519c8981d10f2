//! Methods of `std::net` that inline and pinned sockets have in common, as macros over the few
//! methods that differ.

/// Defines the methods that read and set the timeouts in `self.ends`.
macro_rules! timeout_calls {
    ($reads:literal, $writes:literal) => {
        #[doc = concat!("Sets the timeout of ", $reads, ";")]
        /// `None` waits indefinitely, and a timeout of 0 is an error.
        pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
            self.ends.read_timeout.set_timeout(timeout)
        }

        #[doc = concat!("Sets the timeout of ", $writes, ";")]
        /// `None` waits indefinitely, and a timeout of 0 is an error.
        pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
            self.ends.write_timeout.set_timeout(timeout)
        }

        #[doc = concat!("The timeout of ", $reads, ".")]
        pub fn read_timeout(&self) -> io::Result<Option<Duration>> {
            Ok(self.ends.read_timeout.timeout())
        }

        #[doc = concat!("The timeout of ", $writes, ".")]
        pub fn write_timeout(&self) -> io::Result<Option<Duration>> {
            Ok(self.ends.write_timeout.timeout())
        }

        #[doc = concat!("In non-blocking mode ", $reads, " and ", $writes)]
        /// return `WouldBlock` instead of waiting.
        pub fn set_nonblocking(&self, is_nonblocking: bool) -> io::Result<()> {
            self.ends.read_timeout.set_nonblocking(is_nonblocking);
            self.ends.write_timeout.set_nonblocking(is_nonblocking);
            Ok(())
        }
    };
}

/// Defines the option and group methods of a UDP socket, which has to have `options`,
/// `set_options`, `owns`, `join` and `leave`.
macro_rules! udp_calls {
    () => {
        /// Sets the time to live of unicast datagrams, 1 to 255.
        pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
            let ttl = $crate::std_calls::hop_limit(ttl, 1)?;
            self.set_options(move |options| options.ttl = ttl)
        }

        /// The time to live of unicast datagrams; 64 by default.
        pub fn ttl(&self) -> io::Result<u32> {
            Ok(self.options()?.ttl.into())
        }

        /// Sets the time to live of multicast datagrams, 0 to 255. With 1 they stay in the subnet,
        /// with 0 on this host.
        pub fn set_multicast_ttl_v4(&self, ttl: u32) -> io::Result<()> {
            let ttl = $crate::std_calls::hop_limit(ttl, 0)?;
            self.set_options(move |options| options.multicast_ttl = ttl)
        }

        /// The time to live of multicast datagrams; 1 by default.
        pub fn multicast_ttl_v4(&self) -> io::Result<u32> {
            Ok(self.options()?.multicast_ttl.into())
        }

        /// The same as [`UdpSocket::set_multicast_ttl_v4`], under the name of `socket2`.
        pub fn set_multicast_hops_v6(&self, hops: u32) -> io::Result<()> {
            self.set_multicast_ttl_v4(hops)
        }

        /// The same as [`UdpSocket::multicast_ttl_v4`].
        pub fn multicast_hops_v6(&self) -> io::Result<u32> {
            self.multicast_ttl_v4()
        }

        /// Sets whether group members on this interface, including this socket, receive the
        /// datagrams that this socket sends to the group.
        pub fn set_multicast_loop_v4(&self, is_on: bool) -> io::Result<()> {
            self.set_options(move |options| options.multicast_loop = is_on)
        }

        /// Whether group members on this interface receive the datagrams that this socket sends to
        /// the group; `true` by default.
        pub fn multicast_loop_v4(&self) -> io::Result<bool> {
            Ok(self.options()?.multicast_loop)
        }

        /// The same as [`UdpSocket::set_multicast_loop_v4`]: a socket has only one address family.
        pub fn set_multicast_loop_v6(&self, is_on: bool) -> io::Result<()> {
            self.set_multicast_loop_v4(is_on)
        }

        /// The same as [`UdpSocket::multicast_loop_v4`].
        pub fn multicast_loop_v6(&self) -> io::Result<bool> {
            self.multicast_loop_v4()
        }

        /// Sets the value that [`UdpSocket::broadcast`] returns, without any other effect: sending
        /// a broadcast needs no permission.
        pub fn set_broadcast(&self, is_on: bool) -> io::Result<()> {
            self.set_options(move |options| options.broadcast = is_on)
        }

        /// The value set by [`UdpSocket::set_broadcast`]; `false` by default.
        pub fn broadcast(&self) -> io::Result<bool> {
            Ok(self.options()?.broadcast)
        }

        /// The same as [`UdpSocket::join`], with the signature of `std::net`. `interface` must be
        /// unspecified, or an address of this interface.
        pub fn join_multicast_v4(&self, group: &Ipv4Addr, interface: &Ipv4Addr) -> io::Result<()> {
            self.check_interface(*interface)?;
            self.join((*group).into())
        }

        /// The same as [`UdpSocket::join`], with the signature of `std::net`. The interface index
        /// is ignored.
        pub fn join_multicast_v6(&self, group: &Ipv6Addr, _interface: u32) -> io::Result<()> {
            self.join((*group).into())
        }

        /// The same as [`UdpSocket::leave`], with the signature of `std::net`.
        pub fn leave_multicast_v4(&self, group: &Ipv4Addr, interface: &Ipv4Addr) -> io::Result<()> {
            self.check_interface(*interface)?;
            self.leave((*group).into());
            Ok(())
        }

        /// The same as [`UdpSocket::leave`], with the signature of `std::net`.
        pub fn leave_multicast_v6(&self, group: &Ipv6Addr, _interface: u32) -> io::Result<()> {
            self.leave((*group).into());
            Ok(())
        }

        fn check_interface(&self, address: Ipv4Addr) -> io::Result<()> {
            match address.is_unspecified() || self.owns(address.into())? {
                true => Ok(()),
                false => Err(io::ErrorKind::AddrNotAvailable.into()),
            }
        }
    };
}

pub(crate) use {timeout_calls, udp_calls};

pub(crate) fn hop_limit(value: u32, min: u8) -> std::io::Result<u8> {
    let limit = u8::try_from(value).ok().filter(|limit| *limit >= min);
    let why = || format!("a hop limit of {value} is out of range; write {min} to 255");
    limit.ok_or_else(|| std::io::Error::new(std::io::ErrorKind::InvalidInput, why()))
}
