//! How a layer chooses the quotas of a request: by a closure, or from the row of a table.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::bucket::chosen::{ChosenQuotas, IntoQuotas, QuotaTable};
use crate::bucket::quotas::Quotas;
use crate::error::Error;
use crate::key::Key;
use crate::layers::key::Extracted;

/// Chooses the quotas of a request. Implemented by functions and closures from `&Req` to anything that is
/// [`IntoQuotas`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not choose the quotas of a `{Req}`",
    note = "pass a closure with a typed argument that returns `Quotas`, or an `Option` or a `Result` of them"
)]
pub trait ChooseQuotas<Req> {
    /// Returns the quotas, or the future of them.
    fn quotas(&self, request: &Req) -> ChosenQuotas;
}

impl<Req, F, Q> ChooseQuotas<Req> for F
where
    F: Fn(&Req) -> Q,
    Q: IntoQuotas,
{
    fn quotas(&self, request: &Req) -> ChosenQuotas {
        self(request).into_quotas()
    }
}

/// The table of a layer.
pub enum Table {
    /// It does not change.
    Fixed(QuotaTable),
    /// It may be another one at each request.
    Current(Box<dyn Fn() -> QuotaTable + Send + Sync>),
}

debug!(Table);

impl Table {
    pub(super) fn get(&self, name: &Key) -> Option<Quotas> {
        match self {
            Self::Fixed(table) => table.row(name).cloned(),
            Self::Current(table) => table().row(name).cloned(),
        }
    }
}

impl From<QuotaTable> for Table {
    fn from(table: QuotaTable) -> Self {
        Self::Fixed(table)
    }
}

/// The name and the quotas of a row.
type Row = (Key, Quotas);

/// Returns the row of a request, if it is in one.
type FindRow<Req> = Arc<dyn Fn(&Req) -> Result<Option<Row>, Error> + Send + Sync>;

/// How a layer chooses quotas.
pub(super) enum Choice<Req> {
    By(Arc<dyn ChooseQuotas<Req> + Send + Sync>),
    InTable(FindRow<Req>),
}

impl<Req> Clone for Choice<Req> {
    fn clone(&self) -> Self {
        match self {
            Self::By(quotas) => Self::By(Arc::clone(quotas)),
            Self::InTable(row) => Self::InTable(Arc::clone(row)),
        }
    }
}

/// The row of a request in each table of a layer, in the order of the tables. A table is read once for each request, so
/// that the bucket and the quotas are from the same version of the table.
pub(super) struct Rows(SmallVec<[Option<Row>; 1]>);

impl Rows {
    /// The key of the first limit. Each row has its own bucket. The key of a request without a row cannot equal the key
    /// of a row, regardless of the keys that clients choose.
    pub(super) fn key(&self, key: Extracted) -> Extracted {
        self.0.iter().fold(key, |key, row| {
            let name = row.as_ref().map(|(name, _)| name.clone());
            key.map(|key| match name {
                Some(name) => Key::of([name, key]),
                None => Key::of([key]),
            })
        })
    }
}

impl Rows {
    /// Looks a request up in the tables.
    pub(super) fn of<Req>(choices: &[Choice<Req>], request: &Req) -> Result<Self, Error> {
        let rows = choices.iter().filter_map(|choice| match choice {
            Choice::By(_) => None,
            Choice::InTable(row) => Some(row(request)),
        });
        rows.collect::<Result<_, _>>().map(Self)
    }

    /// The quotas of a request with these rows. What was set later is asked first.
    pub(super) fn quotas<Req>(mut self, choices: &[Choice<Req>], request: &Req) -> ChosenQuotas {
        choices
            .iter()
            .rev()
            .fold(ChosenQuotas::NONE, |chosen, choice| match choice {
                Choice::By(earlier) => chosen.or(|| earlier.quotas(request)),
                Choice::InTable(_) => {
                    let row = self.0.pop().flatten();
                    chosen.or(|| ChosenQuotas::Ready(Ok(row.map(|(_, quotas)| quotas))))
                }
            })
    }
}
