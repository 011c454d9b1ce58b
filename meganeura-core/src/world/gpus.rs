//! Exchanges from GPU to GPU: starts NCCL if all ranks can use it.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::nccl::{Libraries, NAMED, Nccl, UniqueId, Which};
use super::{Collective, Range, World};
use crate::error::bail;
use crate::{DType, Error, ErrorKind, Result};

/// NCCL, once the GPUs are connected.
#[derive(Default)]
pub(super) struct Connection {
    nccl: OnceLock<Arc<Nccl>>,
    /// The reason why the last device does not use it.
    why_not: Mutex<Option<String>>,
}

impl Connection {
    fn note(&self, why_not: Option<String>) {
        *self.why_not.lock().unwrap_or_else(PoisonError::into_inner) = why_not;
    }

    /// The name of the engine in use; `other` names the host's.
    pub(super) fn describe(&self, other: impl FnOnce() -> String) -> String {
        match (&*self.why_not.lock().unwrap_or_else(PoisonError::into_inner), self.nccl.get()) {
            (Some(why), _) => format!("{}, not through NCCL: {why}", other()),
            (None, Some(nccl)) => format!("NCCL {}", nccl.version()),
            (None, None) => other(),
        }
    }

    pub(super) fn abort(&self) {
        if let Some(nccl) = self.nccl.get() {
            nccl.abort();
        }
    }
}

fn another_cannot() -> String {
    "another rank cannot".to_owned()
}

impl World {
    /// The PCI bus id of this rank's GPU, once NCCL has one.
    pub(crate) fn bus(&self) -> Option<&str> {
        self.0.gpus.nccl.get().map(|nccl| nccl.bus())
    }

    /// Starts NCCL on the GPU at `bus`, or, with `Err`, tells the others why this rank cannot. The call is collective;
    /// it returns `None` if any rank cannot.
    pub(crate) fn connect_gpus(&self, bus: Result<&str, String>) -> Result<Option<Arc<Nccl>>> {
        let without = |why: String| {
            self.0.gpus.note(Some(why));
            Ok(None)
        };
        if let Some(nccl) = self.0.gpus.nccl.get() {
            // Either every rank's device has a link, or none has.
            let [is_missing] = self.agree([bus.is_err()])?;
            if is_missing {
                return without(bus.err().unwrap_or_else(another_cannot));
            }
            self.0.gpus.note(None);
            return Ok(Some(Arc::clone(nccl)));
        }
        let named = std::env::var_os(NAMED);
        let libraries = match &bus {
            _ if named.as_ref().is_some_and(|named| named == "off") => Err(format!("{NAMED}=off")),
            Err(why) => Err(why.clone()),
            Ok(_) => match Libraries::open() {
                // A user who names a library wants it.
                Err(error) if named.is_some() => return self.expect_all(Err(error)),
                opened => opened.map_err(|error| error.message().to_owned()),
            },
        };
        self.expect_all(Ok(()))?;
        let [is_missing] = self.agree([libraries.is_err()])?;
        let (libraries, bus) = match (libraries, bus) {
            (Ok(libraries), Ok(bus)) if !is_missing => (libraries, bus),
            (Err(why), _) => return without(why),
            _ => return without(another_cannot()),
        };
        // All GPUs first: NCCL waits for every rank.
        let opened = Nccl::open(libraries, &Which::Bus(bus), (self.rank(), self.size()));
        let [is_missing] = self.agree([opened.is_err()])?;
        let nccl = match opened {
            Ok(nccl) if !is_missing => nccl,
            Ok(_) => return without(another_cannot()),
            Err(error) => return without(error.message().to_owned()),
        };
        let mut id = UniqueId([0; 128]);
        let made = if self.is_first() { nccl.unique_id().map(|made| id = made) } else { Ok(()) };
        self.expect_all(made)?;
        self.broadcast(&mut id.0)?;
        let connected = nccl.connect(id, || self.fault());
        if let Err(error) = &connected
            && error.kind() == ErrorKind::PeerLost
        {
            return connected.map(|()| None);
        }
        let [is_missing] = self.agree([connected.is_err()])?;
        match connected {
            Err(error) => without(error.message().to_owned()),
            Ok(()) if is_missing => without(another_cannot()),
            Ok(()) => {
                self.link_gpus(&nccl);
                Ok(Some(nccl))
            }
        }
    }

    /// Records that GPUs exchange numbers directly. A loss aborts the exchanges that wait for the lost rank.
    pub(super) fn link_gpus(&self, nccl: &Arc<Nccl>) {
        drop(self.0.gpus.nccl.set(Arc::clone(nccl)));
        self.0.gpus.note(None);
        if let Some(watch) = &self.0.watch {
            let nccl = Arc::downgrade(nccl);
            watch.on_loss(move || {
                if let Some(nccl) = nccl.upgrade() {
                    nccl.abort();
                }
            });
        }
    }

    /// Announces this rank's next exchange without waiting. A mismatch shows in [`World::fault`].
    pub(crate) fn announce(&self, collective: &Collective, range: &Range) -> Result<()> {
        let Some(watch) = &self.0.watch else { bail!(Argument, "one rank has nobody to exchange with") };
        watch.come(collective.header(DType::F32, range)).map(drop)
    }

    /// Tells the others that this rank cannot take part in an exchange that it announced.
    pub(crate) fn abandon(&self) {
        if let Some(watch) = &self.0.watch {
            watch.abandon();
        }
    }

    /// A lost rank, or a mismatch of an announced exchange.
    pub(crate) fn fault(&self) -> Option<Error> {
        self.0.watch.as_ref()?.fault()
    }
}
