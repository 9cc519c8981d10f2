//! Calls of `std::net` that inline and pinned sockets have alike, each in terms of a few that they
//! have not.

/// The calls of `std::net` that read and set the timeouts of `self.ends`.
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

/// Options and groups of UDP sockets, by `options`, `set_options`, `owns`, `join` and `leave`.
macro_rules! udp_calls {
    () => {
        /// Sets the time to live of datagrams to one host: at least 1.
        pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
            let ttl = $crate::std_calls::hop_limit(ttl, 1)?;
            self.set_options(move |options| options.ttl = ttl)
        }

        /// The time to live of datagrams to one host; 64 by default.
        pub fn ttl(&self) -> io::Result<u32> {
            Ok(self.options()?.ttl.into())
        }

        /// Sets the time to live of datagrams to groups: how many routers they pass, and one. With
        /// 0 they stay on this host.
        pub fn set_multicast_ttl_v4(&self, ttl: u32) -> io::Result<()> {
            let ttl = $crate::std_calls::hop_limit(ttl, 0)?;
            self.set_options(move |options| options.multicast_ttl = ttl)
        }

        /// The time to live of datagrams to groups; 1 by default.
        pub fn multicast_ttl_v4(&self) -> io::Result<u32> {
            Ok(self.options()?.multicast_ttl.into())
        }

        /// As [`UdpSocket::set_multicast_ttl_v4`], as `socket2` has it.
        pub fn set_multicast_hops_v6(&self, hops: u32) -> io::Result<()> {
            self.set_multicast_ttl_v4(hops)
        }

        /// As [`UdpSocket::multicast_ttl_v4`].
        pub fn multicast_hops_v6(&self) -> io::Result<u32> {
            self.multicast_ttl_v4()
        }

        /// Sets whether members on this interface, this socket among them, get the datagrams that
        /// this socket sends to groups.
        pub fn set_multicast_loop_v4(&self, is_on: bool) -> io::Result<()> {
            self.set_options(move |options| options.multicast_loop = is_on)
        }

        /// Whether members on this interface get the datagrams that this socket sends to groups;
        /// on by default.
        pub fn multicast_loop_v4(&self) -> io::Result<bool> {
            Ok(self.options()?.multicast_loop)
        }

        /// As [`UdpSocket::set_multicast_loop_v4`]: a socket has one address family.
        pub fn set_multicast_loop_v6(&self, is_on: bool) -> io::Result<()> {
            self.set_multicast_loop_v4(is_on)
        }

        /// As [`UdpSocket::multicast_loop_v4`].
        pub fn multicast_loop_v6(&self) -> io::Result<bool> {
            self.multicast_loop_v4()
        }

        /// Keeps what [`UdpSocket::broadcast`] returns; broadcasts are sent with and without it.
        pub fn set_broadcast(&self, is_on: bool) -> io::Result<()> {
            self.set_options(move |options| options.broadcast = is_on)
        }

        /// What [`UdpSocket::set_broadcast`] has set; off by default.
        pub fn broadcast(&self) -> io::Result<bool> {
            Ok(self.options()?.broadcast)
        }

        /// As [`UdpSocket::join`], as `std::net` has it. The address that selects an interface
        /// there has to be unspecified, or one of this interface.
        pub fn join_multicast_v4(&self, group: &Ipv4Addr, interface: &Ipv4Addr) -> io::Result<()> {
            self.check_interface(*interface)?;
            self.join((*group).into())
        }

        /// As [`UdpSocket::join`], as `std::net` has it. The index that selects an interface there
        /// does not count.
        pub fn join_multicast_v6(&self, group: &Ipv6Addr, _interface: u32) -> io::Result<()> {
            self.join((*group).into())
        }

        /// As [`UdpSocket::leave`], as `std::net` has it.
        pub fn leave_multicast_v4(&self, group: &Ipv4Addr, interface: &Ipv4Addr) -> io::Result<()> {
            self.check_interface(*interface)?;
            self.leave((*group).into());
            Ok(())
        }

        /// As [`UdpSocket::leave`], as `std::net` has it.
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
