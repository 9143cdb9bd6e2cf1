"""Why a sweep cannot continue, as errors of one line."""

DRIVERS = {  # packages of the modules that SQLAlchemy imports for a database; others are named as their modules
    "psycopg": "psycopg[binary]",
    "psycopg2": "psycopg2-binary",
    "MySQLdb": "mysqlclient",
    "mysql": "mysql-connector-python",
}


class SweepError(Exception):
    """The sweep cannot be started or resumed; the message says why."""


def reason(error: BaseException) -> str:
    """In one line. Optuna does not say which driver it did not find; what that raised does."""
    missing = error.__cause__
    if isinstance(missing, ModuleNotFoundError) and missing.name:
        module = missing.name.partition(".")[0]
        return f"its driver is not installed: pip install '{DRIVERS.get(module, module)}'"
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
