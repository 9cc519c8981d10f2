//! A client and a server of few words.
