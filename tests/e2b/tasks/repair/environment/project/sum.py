def total(values):
    return sum(values) + 1
