//! What a trainer asks of the run that it holds.

use super::Run;
use super::journal::What;
use crate::error::bail;
use crate::world::World;
use crate::{Device, Result};

impl Run {
    /// `false` for a run [without a folder](Self::unkept).
    pub(crate) fn is_kept(&self) -> bool {
        self.options.is_kept
    }

    /// `true` if the best checkpoint is kept.
    pub(crate) fn keeps_best(&self) -> bool {
        self.options.keep_best.is_some()
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn world(&self) -> &World {
        &self.options.world
    }

    /// Records a setting that is known only now, or compares it with the one that the run was begun with. Another value
    /// replaces it if `may_change`, and is an error otherwise.
    pub(crate) fn hold_setting(&mut self, name: &str, value: &str, may_change: bool) -> Result<()> {
        match self.begun.settings.get(name) {
            Some(then) if then == value => return Ok(()),
            Some(then) if !may_change => {
                bail!(
                    Argument,
                    "the run in {} goes on with another {name}: it was {then}, and is {value}",
                    self.folder.display()
                )
            }
            Some(then) => {
                let change = format!("`{name}` was {then} and is {value}");
                if let Some(files) = &mut self.files {
                    files.journal.write(self.position, What::Warned, &change)?;
                }
            }
            None => {}
        }
        self.begun.settings.insert(name.to_owned(), value.to_owned());
        self.is_described = false;
        Ok(())
    }
}
