//! Changes of settings of the fleet.

use tower_distributed::fleet::{FleetSetting, SettingValue};
use tower_distributed::operator::Kind;
use tower_distributed::{Error, QuotaTable, Quotas, Store};

use crate::act::{can_ask, confirmed};
use crate::arguments::{Arguments, Setting};
use crate::{Failure, show, told};

pub(crate) async fn change(
    store: &Store,
    arguments: &Arguments,
    setting: &Setting<'_>,
) -> Result<(), Failure> {
    let limit = |text: &str| {
        text.parse()
            .map_err(|_| format!("a limit must be a whole number, is {text:?}"))
    };
    match arguments.kind.unwrap_or(Kind::FleetQuotas) {
        Kind::FleetQuotas => {
            let quotas = |text: &str| Quotas::try_from(text).map_err(told);
            of(store, arguments, setting, quotas, "1/s").await
        }
        Kind::FleetTable => {
            let table = |text: &str| QuotaTable::try_from(text).map_err(told);
            of(store, arguments, setting, table, "").await
        }
        Kind::FleetLimit => of::<u32>(store, arguments, setting, limit, "1").await,
        kind => Err(format!(
            "--set and --undo are for fleet_quotas, fleet_table and fleet_limit, not for {kind}"
        )),
    }
}

/// `any`: the text of a valid value. It is the default of this process, which decides nothing.
async fn of<T: SettingValue>(
    store: &Store,
    arguments: &Arguments,
    &Setting { name, value, by }: &Setting<'_>,
    parse: impl Fn(&str) -> Result<T, Failure>,
    any: &str,
) -> Result<(), Failure> {
    can_ask(arguments)?;
    let value = value.map(&parse).transpose()?;
    let setting = FleetSetting::<T>::new(store, name, parse(any)?).map_err(told)?;
    let history = setting.history().await.map_err(told)?;
    let seen = history.first().map_or(0, |last| last.number);
    println!(
        "{name}: {}",
        history
            .first()
            .map_or_else(|| "nothing is set".to_owned(), show::version)
    );
    let changed: Result<_, Error> = match value {
        Some(value) => {
            confirmed(arguments, "Set another value for all processes?")?;
            setting.set_if(seen, value, by).await
        }
        None => {
            if let Some(before) = history.get(1) {
                println!("before: {}", show::version(before));
            }
            confirmed(
                arguments,
                "Set again for all processes what was set before this version?",
            )?;
            setting.undo_if(seen, by).await
        }
    };
    println!("{name}: {}", show::version(&changed.map_err(told)?));
    Ok(())
}
