//! The inner service is called with what is let through, and its errors are passed on.

use tower::{Service as _, ServiceExt as _};
use tower_distributed::Refusal;
use tower_test::{assert_request_eq, mock};

use super::subjects::{Refusing, on_subjects};
use crate::probe::Probe;
use crate::stores::Stores;
use support::spend_budget;

on_subjects!(refusing: errors_of_calls_are_passed_on, a_task_whose_budget_is_spent_is_served_too);

async fn errors_of_calls_are_passed_on<T: Refusing>(stores: Stores) {
    let (inner, mut handle) = mock::pair::<String, String>();
    let mut service = T::around(&T::layer(&stores.open()), inner);
    let failed = tokio::spawn(service.ready().await.unwrap().call("ann:1".into()));
    assert_request_eq!(handle, "ann:1").send_error("out of order");
    let error = failed.await.unwrap().unwrap_err();
    assert!(
        !error.is::<Refusal>() && error.to_string() == "out of order",
        "{error}"
    );
    // A failed call was a call.
    T::becomes(&stores, "ann", T::CALLED).await;
}

async fn a_task_whose_budget_is_spent_is_served_too<T: Refusing>(stores: Stores) {
    let probe = Probe::default();
    let mut service = T::around(&T::layer(&stores.open()), probe.clone());
    let call = tokio::spawn(async move {
        let call = service.ready().await.unwrap().call("ann:1".into());
        spend_budget().await;
        call.await
    });
    assert_eq!(call.await.unwrap().unwrap(), "ann:1");
    assert_eq!(probe.calls(), 1);
    T::becomes(&stores, "ann", T::ANSWERED).await;
}
