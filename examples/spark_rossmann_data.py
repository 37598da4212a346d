"""The tables of the Rossmann Store Sales competition, joined and made into features by Spark.

`write_tables` makes small files of the same schema, for those who have not got the real ones.
"""

import csv
import datetime
import random
from pathlib import Path

from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.feature import StringIndexer
from pyspark.sql import DataFrame, SparkSession, Window, functions

CATEGORICAL = (
    *("Store", "State", "DayOfWeek", "Year", "Month", "Day", "Week", "CompetitionMonthsOpen"),
    *("Promo2Weeks", "StoreType", "Assortment", "PromoInterval", "CompetitionOpenSinceYear"),
    *("Promo2SinceYear", "Events", "Promo", "StateHoliday", "SchoolHoliday"),
)
CONTINUOUS = (
    *("CompetitionDistance", "Max_TemperatureC", "Mean_TemperatureC", "Min_TemperatureC"),
    *("Max_Humidity", "Mean_Humidity", "Min_Humidity", "Max_Wind_SpeedKm_h"),
    *("Mean_Wind_SpeedKm_h", "CloudCover", "trend", "trend_DE", "BeforePromo", "AfterPromo"),
    *("AfterStateHoliday", "BeforeStateHoliday", "BeforeSchoolHoliday", "AfterSchoolHoliday"),
)
WEATHER = [name for name in CONTINUOUS if name.startswith(("M", "C")) and name != CONTINUOUS[0]]
EVENTS = ("Promo", "StateHoliday", "SchoolHoliday")
#: Days of validation before the last one; and how far away an event may count.
VALIDATION_DAYS, FAR_DAYS = 42, 30


def features(spark: SparkSession, folder: Path) -> tuple[DataFrame, DataFrame]:
    """Train and test rows with all features, numbers for categories, and `Validation`."""
    tables = {
        path.stem: spark.read.csv(str(path), header=True, inferSchema=True, nullValue="NA")
        for path in sorted(folder.glob("*.csv"))
    }
    for name in ("train", "test"):
        # "0" and "a" mean something; a file that has no "a" looks like one of numbers.
        holiday = functions.col("StateHoliday").cast("string")
        tables[name] = tables[name].withColumn("StateHoliday", holiday)
    train = tables["train"].where("Open = 1 and Sales > 0")
    last = train.select(functions.max("Date")).first()[0]
    edge = last - datetime.timedelta(days=VALIDATION_DAYS)
    both = (
        train.withColumn("Validation", functions.col("Date") > functions.lit(edge))
        .withColumn("Sales", functions.log("Sales"))
        .withColumn("Id", functions.lit(0))
        .unionByName(tables["test"].withColumn("is_test", functions.lit(True)), True)
    )
    joined = _distances(_joined(both, tables))
    known = joined.na.fill(0, CONTINUOUS).na.fill("none").na.fill(0).na.fill(False)
    indexed = _numbered(known)
    kept = [*CATEGORICAL, *CONTINUOUS, "Id", "Open", "Sales", "Validation", "is_test"]
    rows = indexed.select(kept).cache()
    return rows.where("not is_test").drop("is_test"), rows.where("is_test").drop("is_test")


def _joined(rows: DataFrame, tables: dict[str, DataFrame]) -> DataFrame:
    trends = tables["googletrend"].select(
        functions.to_date(functions.split("week", " - ")[0]).alias("week_start"),
        functions.regexp_extract("file", r"Rossmann_DE_?(.*)", 1).alias("State"),
        "trend",
    )
    weather = tables["weather"].withColumnRenamed("file", "StateName")
    start = functions.date_sub("Date", functions.weekday("Date") + 1)
    germany = trends.where("State = ''").select(
        "week_start", functions.col("trend").alias("trend_DE")
    )
    return (
        rows.join(tables["store"], "Store")
        .join(tables["store_states"], "Store")
        .join(tables["state_names"], "State")
        .withColumn("week_start", start)
        .join(trends, ["State", "week_start"], "left")
        .join(germany, "week_start", "left")
        .join(weather, ["StateName", "Date"], "left")
        .withColumns(
            {
                "Year": functions.year("Date"),
                "Month": functions.month("Date"),
                "Day": functions.dayofmonth("Date"),
                "Week": functions.weekofyear("Date"),
                "CompetitionMonthsOpen": functions.expr(
                    "least(24, greatest(0, (year(Date) - CompetitionOpenSinceYear) * 12 "
                    "+ month(Date) - CompetitionOpenSinceMonth))"
                ),
                "Promo2Weeks": functions.expr(
                    "least(25, greatest(0, (year(Date) - Promo2SinceYear) * 52 "
                    "+ weekofyear(Date) - Promo2SinceWeek))"
                ),
            }
        )
    )


def _distances(rows: DataFrame) -> DataFrame:
    """Days since the last event of each kind in a store, and until the next."""
    past = Window.partitionBy("Store").orderBy("Date")
    future = Window.partitionBy("Store").orderBy(functions.col("Date").desc())
    for name in EVENTS:
        is_on = functions.col(name).cast("string").isin("0", "None", "false") == functions.lit(
            False
        )
        day = functions.when(is_on, functions.col("Date"))
        for prefix, window in (("After", past), ("Before", future)):
            nearest = functions.last(day, ignorenulls=True).over(window)
            days = functions.abs(functions.datediff("Date", nearest))
            near = functions.least(
                functions.lit(FAR_DAYS), functions.coalesce(days, functions.lit(FAR_DAYS))
            )
            rows = rows.withColumn(f"{prefix}{name}", near)
    return rows


def _numbered(rows: DataFrame) -> DataFrame:
    """Categories as numbers from 0 on, and everything as 32-bit floats or integers."""
    text = rows.withColumns({n: functions.col(n).cast("string") for n in CATEGORICAL})
    names = {"inputCols": list(CATEGORICAL), "outputCols": [f"{n}_number" for n in CATEGORICAL]}
    indexer: PipelineModel = Pipeline(
        stages=[StringIndexer(**names, handleInvalid="keep", stringOrderType="alphabetAsc")]
    ).fit(text)
    found = indexer.transform(text)
    found = found.withColumns(
        {name: functions.col(f"{name}_number").cast("int") for name in CATEGORICAL}
        | {name: functions.col(name).cast("float") for name in CONTINUOUS}
        | {"is_test": functions.coalesce("is_test", functions.lit(False))}
        | {"Validation": functions.coalesce("Validation", functions.lit(False))}
        | {"Sales": functions.col("Sales").cast("float")}
    )
    means = found.select(
        *map(functions.mean, CONTINUOUS), *map(functions.stddev, CONTINUOUS)
    ).first()
    scales = zip(CONTINUOUS, means[: len(CONTINUOUS)], means[len(CONTINUOUS) :], strict=True)
    return found.withColumns(
        {
            name: ((functions.col(name) - mean) / (deviation or 1.0)).cast("float")
            for name, mean, deviation in scales
        }
    )


def write_tables(folder: Path, *, stores: int = 12, days: int = 150, seed: int = 0) -> None:
    """Small tables of the same schema: sales follow promotions, weekdays and the store."""
    drawn = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    states = {"BW": "BadenWuerttemberg", "BY": "Bayern", "BE": "Berlin"}
    first = datetime.date(2015, 1, 5)
    dates = [first + datetime.timedelta(days=day) for day in range(days)]
    places = {store: drawn.choice(list(states)) for store in range(1, stores + 1)}
    level = {store: drawn.uniform(4000, 9000) for store in places}
    train: list[list[object]] = []
    test: list[list[object]] = []
    for day, date in enumerate(dates):
        for store in places:
            promo, school = int(day // 7 % 2 == 0), int(date.month in (4, 7))
            open_ = int(date.isoweekday() < 7)
            holiday = "a" if (date.month, date.day) == (5, 1) else "0"
            sales = int(open_ * level[store] * (1 + 0.3 * promo) * drawn.uniform(0.9, 1.1))
            row = [store, date.isoweekday(), date, sales, sales // 9, open_, promo, holiday, school]
            (train if day < days - 14 else test).append(row)
    _write(
        folder / "train.csv",
        "Store DayOfWeek Date Sales Customers Open Promo StateHoliday SchoolHoliday",
        train,
    )
    _write(
        folder / "test.csv",
        "Id Store DayOfWeek Date Open Promo StateHoliday SchoolHoliday",
        [[number + 1, *row[:3], *row[5:]] for number, row in enumerate(test)],
    )
    _write(
        folder / "store.csv",
        "Store StoreType Assortment CompetitionDistance CompetitionOpenSinceMonth "
        "CompetitionOpenSinceYear Promo2 Promo2SinceWeek Promo2SinceYear PromoInterval",
        [
            [store, drawn.choice("abcd"), drawn.choice("abc"), drawn.randrange(50, 9000), 9, 2010]
            + ([1, 14, 2011, "Jan,Apr,Jul,Oct"] if store % 2 else [0, "NA", "NA", "NA"])
            for store in places
        ],
    )
    _write(folder / "store_states.csv", "Store State", [list(pair) for pair in places.items()])
    _write(folder / "state_names.csv", "StateName State", [[n, s] for s, n in states.items()])
    weeks = [first + datetime.timedelta(days=7 * week - 1) for week in range(days // 7 + 2)]
    _write(
        folder / "googletrend.csv",
        "file week trend",
        [
            [f"Rossmann_DE{state}", f"{w} - {w + datetime.timedelta(days=6)}", drawn.randrange(100)]
            for state in ("", *(f"_{state}" for state in states))
            for w in weeks
        ],
    )
    _write(
        folder / "weather.csv",
        f"file Date {' '.join(WEATHER)} Events",
        [
            [name, date, *(drawn.randrange(1, 30) for _ in WEATHER), drawn.choice(["Rain", "Fog"])]
            for name in states.values()
            for date in dates
        ],
    )


def _write(path: Path, header: str, rows: list[list[object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header.split(), *rows])
