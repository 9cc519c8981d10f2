//! IP over InfiniBand and the IP family that it carries (RFC 4391, RFC 4755).
