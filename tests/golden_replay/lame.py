def options(trace, context):
    names = {"lambda": "lambda_"}
    given = {names.get(name, name): value for name, value in trace["hyperparameters"].items()}
    given.pop("class_subset", None)
    return given
