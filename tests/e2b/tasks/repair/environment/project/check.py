from sum import total
assert total([1, 2]) == 3
print("passed")
