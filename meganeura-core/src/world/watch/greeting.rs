//! A rank's greeting: it connects to the hub, and each proves to the other that it knows the secret.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::thread;
use std::time::{Duration, Instant};

use super::message::Message;
use super::secret::{self, End, NAMED, Secret};
use super::{BEAT, SILENCE, Times, configure};

/// Connects to a hub that may start listening only later, and that closes connections when it has too many.
pub(super) fn connect(address: &str, times: Times, hello: &Message, secret: &Secret) -> io::Result<TcpStream> {
    let begin = Instant::now();
    loop {
        let mut failed = io::Error::new(io::ErrorKind::NotFound, "it has no address");
        match address.to_socket_addrs() {
            Err(error) => failed = error,
            Ok(found) => {
                for address in found {
                    let connected = TcpStream::connect_timeout(&address, SILENCE);
                    match connected.and_then(|stream| greet(stream, times.greeting, hello, secret)) {
                        Ok(stream) => return Ok(stream),
                        Err(error) => failed = error,
                    }
                }
            }
        }
        if begin.elapsed() > times.joining {
            return Err(failed);
        }
        thread::sleep(BEAT / 2);
    }
}

/// A rank's part in the greeting.
fn greet(mut stream: TcpStream, greeting: Duration, hello: &Message, secret: &Secret) -> io::Result<TcpStream> {
    let until = Instant::now() + greeting;
    configure(&stream)?;
    let mut opening = [0; secret::OPENING];
    read_until(&mut stream, &mut opening, until)?;
    let (hub, own) = (secret::opened(&opening)?, secret::random()?);
    let mut said = Vec::new();
    hello.write(&mut said)?;
    let proof = secret.proof(End::Rank, &hub, &own, &said);
    stream.write_all(&[&own[..], proof.as_bytes(), &said].concat())?;
    let mut reply = [0; secret::LEN];
    read_until(&mut stream, &mut reply, until).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
            let why = format!("it closed the connection: has rank 0 the same secret ({NAMED} under torchrun)?");
            io::Error::new(io::ErrorKind::PermissionDenied, why)
        }
        _ => error,
    })?;
    if secret.proof(End::Hub, &hub, &own, &said) != blake3::Hash::from(reply) {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the listener does not know the ranks' secret"));
    }
    stream.set_read_timeout(None)?;
    Ok(stream)
}

/// Fills `bytes`, however few arrive at a time.
fn read_until(stream: &mut TcpStream, mut bytes: &mut [u8], until: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the listener did not answer in time"));
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(bytes) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => bytes = &mut bytes[count..],
            Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
