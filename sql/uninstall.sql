-- Removes a plain install of Dever SQL with all its jobs. An extension is removed by: drop extension dever;

drop schema dever cascade;
