from orbit.sandbox.cli import main

main()
